"""The schema that is run is the one that pydantic derives from the same dataclasses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from neobert.config import RunConfig
from neobert.config.annotations import hints_of
from neobert.config.hydrate import core_schema
from neobert.config.schema import Waiver
from profiles.about import About, Expectations, ProfileHead, Requirements

BOOKKEEPING = {
    "ref",
    "metadata",
    "collect_init_only",
    "computed_fields",
    "default_factory_takes_data",
    "init",
}
UNSET = {"frozen": False, "post_init": False}


def without_bookkeeping(schema: Any) -> Any:
    """pydantic's schema without what says nothing about validation."""
    if isinstance(schema, list | tuple):
        return [without_bookkeeping(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "tagged-union":  # of several types, which pydantic would try one after the other
        return {
            "type": "union",
            "choices": [without_bookkeeping(item) for item in schema["choices"].values()],
        }
    return {
        name: without_bookkeeping(item)
        for name, item in schema.items()
        if name not in BOOKKEEPING and not (name in UNSET and item is UNSET[name])
    }


@pytest.mark.parametrize("kind", [RunConfig, Waiver, ProfileHead, About, Requirements, Expectations])
def test_it_is_what_pydantic_derives(kind: Any) -> None:
    assert without_bookkeeping(core_schema(kind)) == without_bookkeeping(TypeAdapter(kind).core_schema)


@pytest.mark.parametrize("hint", hints_of(RunConfig).values(), ids=hints_of(RunConfig).keys())
def test_so_is_each_section(hint: Any) -> None:
    derived = without_bookkeeping(TypeAdapter(hint).core_schema)
    assert without_bookkeeping(core_schema(hint)) == derived


def test_the_comparison_sees_a_bound_that_differs() -> None:
    schema = core_schema(Waiver)
    schema["schema"]["fields"][1]["schema"]["min_length"] = 11
    assert without_bookkeeping(schema) != without_bookkeeping(TypeAdapter(Waiver).core_schema)
