"""Declarations of keys and sections: bounds, descriptions, and the effect of a change."""

from dataclasses import field, fields
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


class ConfigSection:
    """Base of the sections, which are dataclasses with `eq=False` and `repr=False`.

    Generating these methods for each dataclass at import time took 1/20 of the time of `lint`.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def _field_values(self) -> dict[str, Any]:
        kind: Any = type(self)
        return {name: getattr(self, name) for name in _field_names(kind)}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._field_values() == other._field_values()

    def __hash__(self) -> int:
        return hash(tuple(self._field_values().values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._field_values().items())
        return f"{type(self).__qualname__}({shown})"


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


class Bound(NamedTuple):
    """Bound of a number; minimum length or pattern of a text. `name` is also pydantic's name of the bound."""

    name: str
    limit: Any

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> Any:
        """Add the bound to pydantic's schema, from which the JSON Schema is derived."""
        return handler(kind) | {self.name: self.limit}


gt, ge, lt, le = (partial(Bound, name) for name in ("gt", "ge", "lt", "le"))
min_length, pattern = partial(Bound, "min_length"), partial(Bound, "pattern")

PositiveInt = Annotated[int, gt(0)]
LONGEST_SEQUENCE = 2**24
"""Largest of the consecutive integers in fp32, in which positions are computed."""
SequenceLength = Annotated[int, gt(0), le(LONGEST_SEQUENCE)]
MOST_BLOCKS = 10_000
"""Maximum number of blocks, because plan and rules iterate over them."""
NumBlocks = Annotated[int, gt(0), le(MOST_BLOCKS)]
NonNegativeInt = Annotated[int, ge(0)]
PositiveFloat = Annotated[float, gt(0)]
NonNegativeFloat = Annotated[float, ge(0)]
Fraction = Annotated[float, ge(0), le(1)]
Beta = Annotated[float, ge(0), lt(1)]
Percent = Annotated[float, ge(0), le(100)]
NonEmpty = Annotated[str, min_length(1)]
LONGEST_SILENCE_S = 604_800
Silence = Annotated[float, gt(0), le(LONGEST_SILENCE_S)]


Effect = Literal["model", "data", "numerics", "machine", "loading", "cadence", "start", "limits", "reporting"]
"""Effect of a change of a key.

model: parameters and optimizer state; a run with another value cannot resume checkpoints of this run.
data: examples, their order and targets; checkpoints cannot be resumed either.
numerics: training results; may change on resume.
machine: speed and memory; results are equal within the precision.
loading: speed of data loading; results are equal bit for bit.
cadence: work between steps: saves, evaluations, traces.
start: start of a session.
limits: checks before training and limits during training; no effect on training results.
reporting: names, folders, logging and monitoring; no effect on training results.
"""
EFFECTS: tuple[str, ...] = get_args(Effect)
PER_KEY: Literal["per key"] = "per key"


def key(default: Any, description: str, *, affects: Effect | None = None, **more: Any) -> Any:
    """Declare a key with its default and description.

    Without `affects`, the section's effect applies. Further metadata: `is_path` for a path, relative to its
    run file; `words`: values of such a key that are not paths; `replaces`: keys of the same section that this
    key removes from lower layers; `by_content`: a data key that may change on resume, because the text, the
    tokenizer or the code is compared instead of the key's value; `is_reference` for a user-defined function,
    such as `file.py:function`, relative to its run file.
    """
    return field(default=default, metadata=field_metadata(description, affects) | more)


def section(kind: type[Any], description: str, *, affects: Effect | Literal["per key"]) -> Any:
    """Declare a section that has its defaults if a file omits it.

    `affects` applies to all keys that do not declare it; with PER_KEY, every key has to declare it.
    """
    if affects == PER_KEY:
        require_effects(kind)
    return field(default_factory=kind, metadata=field_metadata(description, affects))


def field_metadata(description: str, affects: str | None) -> dict[str, Any]:
    """Return the metadata of a field. Raises TypeError for an unknown effect."""
    if affects is None:
        return {"description": description}
    if affects not in (*EFFECTS, PER_KEY):
        raise TypeError(f"affects={affects!r} is not one of {', '.join(EFFECTS)}")
    return {"description": description, "affects": affects}


def require_effects(kind: type[Any]) -> None:
    """Raise TypeError for a key without `affects`."""
    for item in fields(kind):
        if "affects" not in item.metadata:
            raise TypeError(
                f"{kind.__name__}.{item.name} has no affects= (the effect of a change): "
                f"write one of {', '.join(EFFECTS)}"
            )
