"""From annotations to the validation schema that pydantic-core runs.

pydantic's TypeAdapter derives the same schema from the same annotations, and a test holds the two equal.
Deriving it there takes some 40 ms, which every command would pay; here it takes about 5.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from datetime import date
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen

from neobert.config.annotations import (
    chosen_tag,
    hints_of,
    is_section,
    is_union,
    members_by_tag,
    unwrap,
    without_null,
)

CoreSchema = dict[str, Any]

SCALARS = {bool: "bool", int: "int", float: "float", str: "str", date: "date", Any: "any"}
BOUNDS = ((Gt, "gt"), (Ge, "ge"), (Lt, "lt"), (Le, "le"), (MinLen, "min_length"))


def core_schema(annotation: Any) -> CoreSchema:
    """The schema of an annotation: of a dataclass with all that it holds, of a bounded number, of a list."""
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
    """The schema of a discriminated section. A section that gives no `type` is of the first one."""
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
