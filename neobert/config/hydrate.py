"""The edge where a tree of plain values becomes frozen dataclasses. The only module that imports pydantic.

It is fed JSON: pydantic's Python mode takes True for 1, and strictly it takes no list for a tuple.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from neobert.config.annotations import TAG, annotation_at, members_by_tag
from neobert.config.nodes import Path

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

T = TypeVar("T")

WRONG_TAG = ("union_tag_invalid", "union_tag_not_found")


@dataclass(frozen=True, slots=True)
class Problem:
    """Value that the schema rejects, with its location. `kind` is pydantic's name of the error."""

    kind: str
    path: Path
    value: Any


class HydrationError(Exception):
    """All that the schema refuses in one tree."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


@cache
def validator(kind: Any) -> SchemaValidator:
    """The validator of a dataclass, built on first use."""
    from pydantic_core import SchemaValidator

    from neobert.config.validation import core_schema

    schema: Any = core_schema(kind)
    return SchemaValidator(schema)


def hydrate(kind: type[T], values: Any) -> T:
    """Build the dataclass from plain values, strictly. Raises HydrationError with all that is wrong."""
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
    """pydantic names the chosen member of a union between a section and its key, and a file does not."""
    path: Path = ()
    rest = list(location)
    while rest:
        path = (*path, rest.pop(0))
        if rest and members_by_tag(annotation_at(path, kind)):
            del rest[0]
    return path


def pydantic_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema of a dataclass."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).json_schema()
