"""Type annotations of config keys and sections: bounds, null, lists, and unions of sections.

A discriminated section is a union of dataclasses that each define a key `type` with a distinct default, the
tag. The value of `type` in a file selects the member; the first member of the union is the default.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from neobert.config.nodes import Path
from neobert.config.schema import RunConfig

TAG = "type"
NOT_GIVEN = object()


@cache
def unwrap(annotation: Any) -> tuple[Any, bool]:
    """Return the annotation without its bounds and without None, and whether None is allowed."""
    is_optional = False
    while True:
        if is_union(annotation):
            is_optional |= type(None) in get_args(annotation)
            annotation = without_null(annotation)
            if is_union(annotation):
                return annotation, is_optional
        elif get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        else:
            return annotation, is_optional


def without_null(annotation: Any) -> Any:
    """Return the annotation without None; its bounds are kept."""
    parts = tuple(part for part in get_args(annotation) if part is not type(None))
    return Union[parts]  # noqa: UP007  (built from a tuple)


def is_union(annotation: Any) -> bool:
    """Return whether an annotation is a union, including `X | None`."""
    return get_origin(annotation) in (Union, types.UnionType)


@cache
def section_members(annotation: Any) -> tuple[type[Any], ...]:
    """Return the dataclasses of a section's annotation, the default first; empty for a key's annotation."""
    bare, _ = unwrap(annotation)
    parts = get_args(bare) if is_union(bare) else (bare,)
    return parts if all(isinstance(part, type) and is_dataclass(part) for part in parts) else ()


def is_section(annotation: Any) -> bool:
    """Return whether an annotation is a section: a dataclass or a union of dataclasses."""
    return bool(section_members(annotation))


def type_tag(member: type[Any]) -> str:
    """Return the tag of a section class: the default value of its key `type`."""
    return str(next(item.default for item in fields(member) if item.name == TAG))


def members_by_tag(section: Any) -> dict[str, Any]:
    """Return the members of a discriminated section by tag; empty for any other annotation."""
    members = section_members(section)
    return {type_tag(member): member for member in members} if len(members) > 1 else {}


def chosen_tag(section: Any, values: object) -> str:
    """Return the value of `type` in the plain values of a discriminated section, else the default tag.

    The value is not validated.
    """
    given = values.get(TAG, NOT_GIVEN) if isinstance(values, Mapping) else NOT_GIVEN
    return next(iter(members_by_tag(section))) if given is NOT_GIVEN else str(given)


@cache
def type_hints(section: Any) -> dict[str, Any]:
    """Return the annotations of a section's keys by name, with bounds.

    A discriminated section has the keys of all its members.
    """
    hints: dict[str, Any] = {}
    for member in section_members(section):
        for name, hint in get_type_hints(member, include_extras=True).items():
            if name[0] != "_":
                hints.setdefault(name, hint)
    tags = members_by_tag(section)
    return hints | {TAG: Literal[tuple(tags)]} if tags else hints


@cache
def section_fields(section: Any) -> Iterable[Field[Any]]:
    """Return the dataclass fields of a section.

    A discriminated section has the fields of all its members; a name that several members define is taken
    from the first of them.
    """
    found: dict[str, Field[Any]] = {}
    for member in section_members(section):
        for item in fields(member):
            found.setdefault(item.name, item)
    return found.values()


def annotation_at(path: Path, root: Any = RunConfig) -> Any:
    """Return the annotation of the key or list item at a path; None if the schema does not define it."""
    annotation: Any = root
    for part in path:
        annotation, _ = unwrap(annotation)
        items = get_args(annotation)
        if is_section(annotation):
            annotation = type_hints(annotation).get(str(part))
            continue
        if is_union(annotation):
            annotation = items[1]
            items = get_args(annotation)
        if get_origin(annotation) is tuple and isinstance(part, int):
            annotation = items[0] if items[-1] is Ellipsis else items[min(part, len(items) - 1)]
        elif get_origin(annotation) is dict:
            annotation = Any
        else:
            return annotation if annotation is Any else None
    return annotation


def literal_choices(annotation: Any) -> tuple[str, ...]:
    """Return the allowed values of a key, or its usual values if others are allowed too; else empty."""
    bare, _ = unwrap(annotation)
    parts = get_args(bare) if is_union(bare) else (bare,)
    return next((get_args(part) for part in parts if get_origin(part) is Literal), ())
