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
    hints_of,
    is_section,
    is_union,
    members_by_tag,
    members_of,
    unwrap,
    without_null,
)
from neobert.config.nodes import Path
from neobert.config.schema import RunConfig

T = TypeVar("T")

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
    reader = _Reader()
    value: T = reader.read(kind, values, ())
    if reader.problems:
        raise HydrationError(tuple(reader.problems))
    return value


class _Reader:
    """Recursive converter of plain values by annotation. Rejected values become None and are recorded."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read(self, annotation: Any, value: Any, path: Path) -> Any:
        bare, is_optional = unwrap(annotation)
        if value is None and is_optional:
            return None
        if is_section(bare):
            return self.read_section(bare, value, path)
        if is_union(bare):  # text, or a list of texts; one of a few names, or another text
            first, second = get_args(bare)
            is_other_text = get_origin(first) is Literal and value not in get_args(first)
            return self.read(second if is_other_text or isinstance(value, list) else first, value, path)
        if get_origin(bare) is tuple:
            return self.read_tuple(get_args(bare), value, path)
        if get_origin(bare) is dict:
            return value if isinstance(value, dict) else self.reject(WRONG, path, value)
        result = _scalar(bare, value)
        problem = WRONG if result is None else _out_of_bounds(annotation, result)
        return self.reject(problem, path, value) if problem else result

    def reject(self, kind: str, path: Path, value: Any) -> None:
        self.problems.append(Problem(kind, path, value))

    def read_section(self, section: Any, value: Any, path: Path) -> Any:
        tags = members_by_tag(section)
        tag = chosen_tag(section, value) if tags else ""
        if tags and tag not in tags:
            return self.reject(WRONG, (*path, TAG), value[TAG])
        if not isinstance(value, dict):
            return self.reject(WRONG, path, value)
        kind = tags.get(tag, section)
        hints = hints_of(kind)
        num_before = len(self.problems)
        known = {
            name: self.read(hints[name], item, (*path, name)) for name, item in value.items() if name in hints
        }
        for name in _required(kind):
            if name not in value:
                self.reject(REQUIRED, (*path, name), value)
        for name, item in value.items():
            if name not in hints:
                self.reject(UNKNOWN, (*path, name), item)
        return kind(**known) if len(self.problems) == num_before else None

    def read_tuple(self, items: tuple[Any, ...], value: Any, path: Path) -> Any:
        is_any_length = items[-1] is Ellipsis
        if not isinstance(value, list) or not (is_any_length or len(value) <= len(items)):
            return self.reject(WRONG, path, value)
        for index in range(len(value), 0 if is_any_length else len(items)):
            self.reject(REQUIRED, (*path, index), value)
        kinds = items[:1] * len(value) if is_any_length else items
        pairs = zip(kinds, value, strict=False)
        return tuple(self.read(kind, item, (*path, index)) for index, (kind, item) in enumerate(pairs))


@cache
def _required(kind: Any) -> tuple[str, ...]:
    return tuple(
        item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING
    )


def _scalar(bare: Any, value: Any) -> Any:
    """Return the value converted to the scalar type `bare`, or None if it has another type.

    Integers are accepted for float, and ISO 8601 strings for dates.
    """
    if get_origin(bare) is Literal:
        return value if value in get_args(bare) else None
    if bare is float and type(value) in (int, float):
        return float(value) if isfinite(value) else None
    if bare is date:
        return _date(value)
    return value if type(value) is bare else None


def _date(value: Any) -> date | None:
    if not isinstance(value, str) or not ISO_DATE.fullmatch(value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _out_of_bounds(annotation: Any, value: Any) -> str:
    """Return the problem kind of the first bound that a value violates; empty if it violates none."""
    given = without_null(annotation) if is_union(annotation) else annotation
    bounds = get_args(given)[1:] if get_origin(given) is Annotated else ()
    for name, limit in bounds:
        holds, problem = BOUNDS[name]
        if not holds(value, limit):
            return problem
    return ""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of run files and profiles."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(RunConfig).json_schema()
    definitions = schema.get("$defs", {})
    _describe(schema, RunConfig)
    for hint in hints_of(RunConfig).values():
        for member in members_of(hint):
            _describe(definitions[member.__name__], member)
    schema["properties"] |= PROFILE_KEYS
    return {"$schema": DIALECT, **schema, "title": "neobert-launch run file or profile"}


def _describe(schema: dict[str, Any], kind: Any) -> None:
    schema["description"] = (kind.__doc__ or "").strip()
    for item in fields(kind):
        schema["properties"][item.name]["description"] = item.metadata.get("description", "")
