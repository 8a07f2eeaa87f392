"""Conversion of plain values to frozen dataclasses, with strict types and all errors at once.

It accepts and rejects the same values as pydantic in strict JSON mode (tested). pydantic is imported only to
derive the JSON Schema: importing it and building its validators took an eighth of a command's startup.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import date
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from neobert.config.annotations import (
    TAG,
    chosen_tag,
    is_section,
    is_union,
    members_by_tag,
    section_members,
    type_hints,
    unwrap,
    without_null,
)
from neobert.config.nodes import Path
from neobert.config.schema import RunConfig

T = TypeVar("T")

SECTION, UNION = "section", "union"
UNKNOWN = "unknown key"
REQUIRED = "missing"
TOO_LARGE = "too large"
WRONG = "wrong"
BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (operator.gt, WRONG),
    "ge": (operator.ge, WRONG),
    "lt": (operator.lt, TOO_LARGE),
    "le": (operator.le, TOO_LARGE),
    "min_length": (lambda text, limit: len(text) >= limit, WRONG),
    "pattern": (lambda text, limit: re.search(limit, text) is not None, WRONG),
}
"""Test and kind of problem of each bound."""
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROFILE_KEYS: dict[str, Any] = {
    "about": {"type": "object", "description": "Profiles: name, kind, intent, requires, expects."},
    "extends": {"type": "string", "description": "Profiles: the profile that this one builds on."},
    "pretraining": {
        "type": ["object", "null"],
        "description": "Profiles: values for a NeoBERT that is pretrained from random weights.",
    },
}


class Problem(NamedTuple):
    """Value that the schema rejects, with its path. `kind` is a constant of this module, such as UNKNOWN."""

    kind: str
    path: Path
    value: Any


class HydrationError(Exception):
    """Exception with all values of a tree that the schema rejects."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


def hydrate(kind: type[T], values: Any) -> T:
    """Build the dataclass from plain values with strict types. Raises HydrationError with all problems."""
    reader = _ValueReader()
    value: T = reader.read(_value_type(kind), values, ())
    if reader.problems:
        raise HydrationError(tuple(reader.problems))
    return value


class _ValueType(NamedTuple):
    """Requirements of an annotation, computed once: its hash and parts take longer than reading a value.

    Attributes:
        form: "section", "union", "dict", `tuple`, or the type of a scalar (Literal for one of `choices`).
        tags: the members of a discriminated section by tag.
        parts: types of a union's two members, or of a tuple's items.
        bounds: names of `BOUNDS`, with their limits.
    """

    bare: Any
    is_optional: bool
    form: Any
    tags: Mapping[str, Any] = {}
    parts: tuple[_ValueType, ...] = ()
    is_any_length: bool = False
    choices: tuple[Any, ...] = ()
    bounds: tuple[tuple[str, Any], ...] = ()


def _value_type(annotation: Any) -> _ValueType:
    bare, is_optional = unwrap(annotation)
    if is_section(bare):
        return _ValueType(bare, is_optional, SECTION, tags=members_by_tag(bare))
    items = get_args(bare)
    if is_union(bare):  # text, or a list of texts; one of a few names, or another text
        return _ValueType(bare, is_optional, UNION, parts=tuple(map(_value_type, items)))
    form = get_origin(bare) or bare
    if form is tuple:
        is_any_length = items[-1] is Ellipsis
        parts = tuple(map(_value_type, items[:1] if is_any_length else items))
        return _ValueType(bare, is_optional, tuple, parts=parts, is_any_length=is_any_length)
    choices = items if form is Literal else ()
    return _ValueType(bare, is_optional, form, choices=choices, bounds=_annotated_bounds(annotation))


def _annotated_bounds(annotation: Any) -> tuple[tuple[str, Any], ...]:
    given = without_null(annotation) if is_union(annotation) else annotation
    return get_args(given)[1:] if get_origin(given) is Annotated else ()


@cache
def _section_keys(section: Any) -> Mapping[str, _ValueType]:
    return {name: _value_type(hint) for name, hint in type_hints(section).items()}


@cache
def _required_keys(section: Any) -> tuple[str, ...]:
    return tuple(
        item.name for item in fields(section) if item.default is MISSING and item.default_factory is MISSING
    )


class _ValueReader:
    """Recursive converter of plain values by type. Rejected values become None and are recorded."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read(self, kind: _ValueType, value: Any, path: Path) -> Any:
        form = kind.form
        if value is None and kind.is_optional:
            return None
        if form is SECTION:
            return self.read_section(kind, value, path)
        if form is UNION:
            first, second = kind.parts
            is_other_text = first.form is Literal and value not in first.choices
            return self.read(second if is_other_text or isinstance(value, list) else first, value, path)
        if form is tuple:
            return self.read_tuple(kind, value, path)
        if form is dict:
            return value if isinstance(value, dict) else self.reject(WRONG, path, value)
        result = _read_scalar(kind, value)
        if result is None:
            return self.reject(WRONG, path, value)
        for name, limit in kind.bounds:
            holds, problem = BOUNDS[name]
            if not holds(result, limit):
                return self.reject(problem, path, value)
        return result

    def reject(self, kind: str, path: Path, value: Any) -> None:
        self.problems.append(Problem(kind, path, value))

    def read_section(self, kind: _ValueType, value: Any, path: Path) -> Any:
        tag = chosen_tag(kind.bare, value) if kind.tags else ""
        if kind.tags and tag not in kind.tags:
            return self.reject(WRONG, (*path, TAG), value[TAG])
        if not isinstance(value, dict):
            return self.reject(WRONG, path, value)
        section = kind.tags.get(tag, kind.bare)
        keys = _section_keys(section)
        num_before = len(self.problems)
        known = {
            name: self.read(keys[name], item, (*path, name)) for name, item in value.items() if name in keys
        }
        for name in _required_keys(section):
            if name not in value:
                self.reject(REQUIRED, (*path, name), value)
        for name, item in value.items():
            if name not in keys:
                self.reject(UNKNOWN, (*path, name), item)
        return section(**known) if len(self.problems) == num_before else None

    def read_tuple(self, kind: _ValueType, value: Any, path: Path) -> Any:
        parts = kind.parts
        if not isinstance(value, list) or not (kind.is_any_length or len(value) <= len(parts)):
            return self.reject(WRONG, path, value)
        for index in range(len(value), 0 if kind.is_any_length else len(parts)):
            self.reject(REQUIRED, (*path, index), value)
        pairs = zip(parts * len(value) if kind.is_any_length else parts, value, strict=False)
        return tuple(self.read(part, item, (*path, index)) for index, (part, item) in enumerate(pairs))


def _read_scalar(kind: _ValueType, value: Any) -> Any:
    """Return the value converted to a scalar of this kind, or None if the kind does not accept it.

    Integers are accepted for float, and ISO 8601 strings for dates.
    """
    form = kind.form
    if form is Literal:
        return value if value in kind.choices else None
    if form is float and type(value) in (int, float):
        return float(value) if isfinite(value) else None
    if form is date:
        return _read_date(value)
    return value if type(value) is form else None


def _read_date(value: Any) -> date | None:
    if not isinstance(value, str) or not ISO_DATE.fullmatch(value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of run files and profiles."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(RunConfig).json_schema()
    definitions = schema.get("$defs", {})
    _add_descriptions(schema, RunConfig)
    for hint in type_hints(RunConfig).values():
        for member in section_members(hint):
            _add_descriptions(definitions[member.__name__], member)
    schema["properties"] |= PROFILE_KEYS
    return {"$schema": DIALECT, **schema, "title": "neobert-launch run file or profile"}


def _add_descriptions(schema: dict[str, Any], kind: Any) -> None:
    schema["description"] = (kind.__doc__ or "").strip()
    for item in fields(kind):
        schema["properties"][item.name]["description"] = item.metadata.get("description", "")
