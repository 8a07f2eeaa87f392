"""Hydration: from a tree of plain values to frozen dataclasses. The only module that imports pydantic.

Its input is JSON: pydantic's Python mode takes True for 1, and strictly it takes no list for a tuple. The
core schema is built here from the annotations, in about 5 ms; pydantic's TypeAdapter derives an equal one, as
a test shows, in 40 ms, which every command would pay.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, dataclass, fields
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen

from neobert.config.annotations import (
    TAG,
    annotation_at,
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

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator


T = TypeVar("T")
CoreSchema = dict[str, Any]

WRONG_TAG = ("union_tag_invalid", "union_tag_not_found")
SCALARS = {bool: "bool", int: "int", float: "float", str: "str", date: "date", Any: "any"}
BOUNDS = ((Gt, "gt"), (Ge, "ge"), (Lt, "lt"), (Le, "le"), (MinLen, "min_length"))
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROFILE_KEYS: dict[str, Any] = {
    "about": {"type": "object", "description": "Profiles: name, kind, intent, requires, expects."},
    "extends": {"type": "string", "description": "Profiles: the profile that this one builds on."},
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Value that the schema rejects, with its location. `kind` is pydantic's name of the error."""

    kind: str
    path: Path
    value: Any


class HydrationError(Exception):
    """All values of one tree that the schema rejects."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


@cache
def validator(kind: Any) -> SchemaValidator:
    """Return the validator of a dataclass, built on first use."""
    from pydantic_core import SchemaValidator

    schema: Any = core_schema(kind)
    return SchemaValidator(schema)


def hydrate(kind: type[T], values: Any) -> T:
    """Build the dataclass from plain values, strictly. Raises HydrationError with all problems."""
    from pydantic_core import ValidationError

    schema: Any = kind
    try:
        value: T = validator(schema).validate_json(json.dumps(values))
        return value
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise HydrationError(tuple(_problem(item, kind) for item in found)) from None


def _problem(item: Any, kind: type[Any]) -> Problem:
    path = _without_tags(item["loc"], kind)
    if item["type"] in WRONG_TAG:
        return Problem(item["type"], (*path, TAG), item["input"][TAG])
    return Problem(item["type"], path, item["input"])


def _without_tags(location: Path, kind: type[Any]) -> Path:
    """Remove the names of union members, which pydantic adds between a section and its key."""
    path: Path = ()
    rest = list(location)
    while rest:
        path = (*path, rest.pop(0))
        if rest and members_by_tag(annotation_at(path, kind)):
            del rest[0]
    return path


def core_schema(annotation: Any) -> CoreSchema:
    """Return the core schema of an annotation, with those of all fields for a dataclass."""
    bare, is_optional = unwrap(annotation)
    if is_optional:
        return {"type": "nullable", "schema": core_schema(without_null(annotation))}
    if get_origin(annotation) is Annotated:
        return core_schema(bare) | _bounds(get_args(annotation)[1:])
    if is_section(bare):
        return _tagged_union(bare) if is_union(bare) else _dataclass(bare)
    if get_origin(bare) is Literal:
        return {"type": "literal", "expected": list(get_args(bare))}
    if get_origin(bare) is tuple:
        return _tuple(get_args(bare))
    if get_origin(bare) is dict:
        keys, values = map(core_schema, get_args(bare))
        return {"type": "dict", "keys_schema": keys, "values_schema": values}
    return {"type": SCALARS[bare]}


def _tagged_union(section: Any) -> CoreSchema:
    """Return the schema of a discriminated section. A section without `type` is of the first type."""
    return {
        "type": "tagged-union",
        "discriminator": lambda values: chosen_tag(section, values),
        "choices": {tag: _dataclass(member) for tag, member in members_by_tag(section).items()},
    }


def _dataclass(kind: Any) -> CoreSchema:
    hints = hints_of(kind)
    strictness = kind.__pydantic_config__
    return {
        "type": "dataclass",
        "cls": kind,
        "slots": True,
        "fields": [field.name for field in fields(kind)],
        "config": {
            "title": kind.__name__,
            "strict": strictness["strict"],
            "extra_fields_behavior": strictness["extra"],
            "allow_inf_nan": strictness["allow_inf_nan"],
        },
        "schema": {
            "type": "dataclass-args",
            "dataclass_name": kind.__name__,
            "fields": [_field(field, hints[field.name]) for field in fields(kind)],
        },
    }


def _field(field: Field[Any], annotation: Any) -> CoreSchema:
    schema = core_schema(annotation)
    if field.default is not MISSING:
        schema = {"type": "default", "schema": schema, "default": field.default}
    elif field.default_factory is not MISSING:
        schema = {"type": "default", "schema": schema, "default_factory": field.default_factory}
    return {"type": "dataclass-field", "name": field.name, "schema": schema}


def _tuple(items: tuple[Any, ...]) -> CoreSchema:
    if items[-1] is Ellipsis:
        return {"type": "tuple", "items_schema": [core_schema(items[0])], "variadic_item_index": 0}
    return {"type": "tuple", "items_schema": [core_schema(item) for item in items]}


def _bounds(metadata: tuple[Any, ...]) -> CoreSchema:
    return {
        name: getattr(bound, name) for bound in metadata for kind, name in BOUNDS if isinstance(bound, kind)
    }


def json_schema(root: Any = RunConfig) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of run files and profiles."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(root).json_schema()
    definitions = schema.get("$defs", {})
    _describe(schema, root)
    for hint in hints_of(root).values():
        for member in members_of(hint):
            _describe(definitions[member.__name__], member)
    schema["properties"] |= PROFILE_KEYS
    return {"$schema": DIALECT, **schema, "title": "neobert-launch run file or profile"}


def _describe(schema: dict[str, Any], kind: Any) -> None:
    schema["description"] = (kind.__doc__ or "").strip()
    for item in fields(kind):
        schema["properties"][item.name]["description"] = item.metadata.get("description", "")
