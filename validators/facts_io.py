"""Conversion of facts to JSON and back, with validation against the dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from neobert.errors import EXIT_USAGE, ProjectError
from validators import facts_gpu, facts_host, facts_numerics, facts_rehearsal, facts_run, facts_text
from validators.facts import SCHEMA_VERSION, Facts

MODULES = (facts_gpu, facts_host, facts_numerics, facts_rehearsal, facts_run, facts_text)
GROUPS = {name: kind for module in MODULES for name, kind in vars(module).items()}
"""Names that the annotations of `Facts` refer to."""
UNREADABLE = "unreadable-facts"

T = TypeVar("T")


class _MismatchError(Exception):
    """Value that does not match the declared type at `path`."""

    def __init__(self, path: str, message: str) -> None:
        self.path, self.message = path, message
        super().__init__(path, message)


def facts_to_json(facts: Facts) -> str:
    """Return facts as an indented JSON object with sorted keys."""
    return json.dumps(asdict(facts), indent=2, sort_keys=True, allow_nan=False) + "\n"


def facts_from_json(text: str, source: str = "facts.json") -> Facts:
    """Parse facts, at the top level or under the `facts` key of a recording.

    Raises ProjectError with exit code 2 for anything that `facts_to_json` does not write.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"not JSON: {error}", source) from None
    if not isinstance(value, dict):
        raise _refusal("not a JSON object", source)
    if isinstance(value.get("facts"), dict):
        value = value["facts"]
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise _refusal(f"schema_version is {version!r}, but this version reads {SCHEMA_VERSION}", source)
    try:
        return _record(Facts, value, "")
    except _MismatchError as mismatch:
        raise _refusal(f"{mismatch.path or 'facts'}: {mismatch.message}", source) from None


def record_of(kind: type[T], value: Mapping[str, Any]) -> T:
    """Build one dataclass from plain JSON values. Raises ProjectError if they do not match its fields."""
    try:
        return _record(kind, value, "")
    except _MismatchError as mismatch:
        raise _refusal(f"{mismatch.path or kind.__name__}: {mismatch.message}", kind.__name__) from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _refusal(message: str, source: str) -> ProjectError:
    hint = "record facts with `neobert-launch preflight --save-facts FILE`"
    return ProjectError(UNREADABLE, f"not a facts file: {message}", hint, source, EXIT_USAGE)


def _record(kind: type[T], value: Any, path: str) -> T:
    if not isinstance(value, Mapping):
        raise _MismatchError(path, f"expected an object, got {value!r}")
    assert is_dataclass(kind)
    hints = _hints(kind)
    unknown = sorted(value.keys() - hints.keys())
    if unknown:
        raise _MismatchError(path, f"unknown field {', '.join(unknown)}")
    missing = sorted(field.name for field in fields(kind) if _is_required(field) and field.name not in value)
    if missing:
        raise _MismatchError(path, f"missing field {', '.join(missing)}")
    return kind(**{name: _read(hints[name], value[name], _join(path, name)) for name in value})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns=GROUPS)


def _is_required(field: Field[Any]) -> bool:
    """Return whether a field must be present: groups may be missing, and so may fields with a default."""
    return field.default is MISSING and field.default_factory is MISSING


def _read(hint: Any, value: Any, path: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value, path)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _optional(arguments, value, path)
    if origin is tuple:
        return _tuple(arguments, value, path)
    if origin is dict:
        if not isinstance(value, dict):
            raise _MismatchError(path, f"expected an object, got {value!r}")
        return {name: _read(arguments[1], item, _join(path, name)) for name, item in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise _MismatchError(path, f"expected one of {', '.join(map(str, arguments))}, got {value!r}")
        return value
    return _scalar(hint, value, path)


def _optional(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    """Convert a value of a union type, which in facts is always `T | None`."""
    (hint,) = (argument for argument in arguments if argument is not NoneType)
    return None if value is None else _read(hint, value, path)


def _tuple(arguments: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _MismatchError(path, f"expected a list, got {value!r}")
    hints = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
    if len(hints) != len(value):
        raise _MismatchError(path, f"expected {len(hints)} values, got {len(value)}")
    paths = (_join(path, str(index)) for index in range(len(value)))
    return tuple(
        _read(hint, item, item_path) for hint, item, item_path in zip(hints, value, paths, strict=False)
    )


def _scalar(hint: type, value: Any, path: str) -> Any:
    """Convert a scalar. An integer is accepted as a float; booleans and infinity are not."""
    if hint is float and type(value) is int:
        value = _as_float(value)
    if type(value) is float and not isfinite(value):
        raise _MismatchError(path, f"expected a finite number, got {value!r}")
    if type(value) is not hint:
        raise _MismatchError(path, f"expected {hint.__name__}, got {value!r}")
    return value


def _as_float(value: int) -> float:
    """Convert an integer to a float; return infinity if it exceeds the largest float."""
    try:
        return float(value)
    except OverflowError:
        return inf


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
