"""Hydration accepts, rejects and builds what pydantic does in strict JSON mode."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from neobert.config import RunConfig
from neobert.config import hydrate as module
from neobert.config.annotations import section_members, type_hints
from neobert.config.hydrate import REQUIRED, TOO_LARGE, UNKNOWN, WRONG, HydrationError, hydrate
from neobert.config.schema import Waiver
from profiles.about import ProfileAbout, ProfileHead, Requirements

KINDS = {
    "unexpected_keyword_argument": UNKNOWN,
    "missing": REQUIRED,
    "less_than": TOO_LARGE,
    "less_than_equal": TOO_LARGE,
}
SECTIONS = [member for hint in type_hints(RunConfig).values() for member in section_members(hint)]
TEXTS = [
    "",
    "x",
    "bf16",
    "auto",
    "hf",
    "2026-12-31",
    "2026-12-32",
    "20261231",
    "2026-12-31T00:00:00",
    "production",
]
NUMBERS = [-1, 0, 1, 2, 5, 100, 241, 10**18, -0.5, 0.0, 0.5, 1.0, 1e300]
SCALARS = st.sampled_from([None, True, False, *NUMBERS, *TEXTS])
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.fixed_dictionaries(
        {}, optional={"code": SCALARS, "reason": SCALARS, "expires": SCALARS, "path": SCALARS}
    ),
    st.lists(st.fixed_dictionaries({"weight": SCALARS}, optional={"path": SCALARS}), max_size=2),
)


@cache
def reference(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def by_pydantic(kind: Any, values: Any) -> Any:
    """The value, or kind and path of each problem."""
    try:
        return reference(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        return {
            (KINDS.get(item["type"], WRONG), tuple(part for part in item["loc"] if not _is_branch(part)))
            for item in error.errors()
            if not (item["loc"][-1:] == ("str",) and isinstance(item["input"], list))
        }


def _is_branch(part: object) -> bool:
    """Parts that name a member of a union of text and list, or of two texts: each is tried, and fails."""
    return part in ("str", "constrained-str") or str(part).startswith(("tuple[", "literal["))


def by_hydration(kind: Any, values: Any) -> Any:
    try:
        return hydrate(kind, values)
    except HydrationError as error:
        return {(problem.kind, problem.path) for problem in error.problems}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from([*SECTIONS, Waiver, ProfileAbout, ProfileHead, Requirements]))
def test_a_section_of_any_values_is_read_as_pydantic_reads_it(data, kind):
    names = st.sampled_from([*type_hints(kind), "unknown"])
    values = data.draw(st.one_of(VALUES, st.dictionaries(names, VALUES, max_size=6)))
    assert by_hydration(kind, values) == by_pydantic(kind, values), values


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_each_key_of_a_section_is_read_as_pydantic_reads_it(kind):
    for name in type_hints(kind):
        for value in [
            None,
            True,
            *NUMBERS,
            *TEXTS,
            [],
            [1],
            [0.5, 0.5],
            ["a"],
            [0.9, 0.9, 0.9],
            {},
            {"a": 1},
        ]:
            values = {name: value}
            assert by_hydration(kind, values) == by_pydantic(kind, values), values


def test_the_comparison_sees_a_bound_that_differs(monkeypatch):
    values = {"code": "CFG008", "reason": "too short", "expires": "2026-12-31"}
    assert by_hydration(Waiver, values) == by_pydantic(Waiver, values) == {(WRONG, ("reason",))}
    bounds = {name: (lambda value, limit: True, WRONG) for name in module.BOUNDS}
    monkeypatch.setattr(module, "BOUNDS", bounds)
    assert by_hydration(Waiver, values) != by_pydantic(Waiver, values)
