"""The edge where a tree of plain values becomes frozen dataclasses. The only module that imports pydantic.

It is fed JSON: pydantic's Python mode takes True for 1, and strictly it takes no list for a tuple.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from neobert.config.tree import Path

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """What the schema refuses, and where. `kind` is pydantic's name of the fault."""

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
        raise HydrationError(
            tuple(
                Problem(item["type"], item["loc"], item["input"])
                for item in error.errors(include_url=False, include_context=False)
            )
        ) from None


def pydantic_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema of a dataclass."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).json_schema()
