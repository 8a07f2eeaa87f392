"""What keys and sections are declared with: bounds, descriptions, and what a change affects."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt, MinLen

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Beta = Annotated[float, Ge(0), Lt(1)]
Percent = Annotated[float, Ge(0), Le(100)]
NonEmpty = Annotated[str, MinLen(1)]
Silence = Annotated[float, Gt(0), Le(604_800)]


Effect = Literal["model", "data", "numerics", "machine", "cadence", "start", "reporting"]
"""What a change of a key affects.

model: parameters and optimizer state: another run, which cannot resume this one's checkpoints.
data: which examples there are, in which order, and what is predicted: another run too.
numerics: how the run learns; it may change when a run resumes.
machine: speed and memory; the results are the same within the precision.
cadence: what the loop does between steps: saves, evaluations, lines of metrics, traces.
start: how a session starts.
reporting: how the run is named, guarded and watched; no step depends on it.
"""
EFFECTS: tuple[str, ...] = get_args(Effect)
PER_KEY: Literal["per key"] = "per key"


def key(default: Any, description: str, *, affects: Effect | None = None, **more: Any) -> Any:
    """A key with its default and the line that describes it.

    Without `affects` it affects what its section does. Further metadata: `is_path` for a path, relative to
    the run file that gives it; `words` for values of such a key that are no paths; `replaces` for keys of the
    same section that lose what a farther layer gave them where a nearer one gives this key; `by_content` for
    a key of the data that may change when a run resumes, as the text or tokenizer itself is compared.
    """
    return field(default=default, metadata=metadata_of(description, affects) | more)


def section(kind: type[Any], description: str, *, affects: Effect | Literal["per key"]) -> Any:
    """A section that is filled with its defaults when a file leaves it out.

    `affects` holds for all keys that do not state their own; PER_KEY requires each key to state it.
    """
    if affects == PER_KEY:
        require_effects(kind)
    return field(default_factory=kind, metadata=metadata_of(description, affects))


def metadata_of(description: str, affects: str | None) -> dict[str, Any]:
    """Return the metadata of a field. Raises TypeError for an effect that is none."""
    if affects is None:
        return {"description": description}
    if affects not in (*EFFECTS, PER_KEY):
        raise TypeError(f"affects={affects!r} is none of {', '.join(EFFECTS)}")
    return {"description": description, "affects": affects}


def require_effects(kind: type[Any]) -> None:
    """Raise TypeError for a key that does not state what it affects."""
    for item in fields(kind):
        if "affects" not in item.metadata:
            raise TypeError(
                f"{kind.__name__}.{item.name} needs affects=, one of {', '.join(EFFECTS)}: "
                "what a change of the key affects"
            )
