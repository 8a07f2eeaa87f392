"""Values of JSON from files: what counts as a count, a number, texts, an object."""

from __future__ import annotations

import pytest

from neobert.runfiles.json_values import is_count, is_number, is_texts, parse_object


@pytest.mark.parametrize(
    ("value", "is_a_count", "is_a_number"),
    [
        (0, True, True),
        (2**63 - 1, True, True),
        (2**63, False, False),
        (-1, False, True),
        (10**400, False, False),
        (1.0, False, True),
        (float("nan"), False, False),
        (float("-inf"), False, False),
        (True, False, False),
        ("1", False, False),
        (None, False, False),
    ],
)
def test_counts_and_numbers(value, is_a_count, is_a_number):
    assert (is_count(value), is_number(value)) == (is_a_count, is_a_number)


@pytest.mark.parametrize(
    ("value", "expected"), [({}, True), ({"a": "b"}, True), ({"a": 1}, False), (["a"], False)]
)
def test_texts(value, expected):
    assert is_texts(value) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        (b'{"a": 1}\n', {"a": 1}),
        ('{"a": ', None),
        ("[1]", None),
        (b"\xff", None),
        ("[" * 100_000, None),
    ],
    ids=["text", "bytes", "torn", "list", "no UTF-8", "deep"],
)
def test_a_line_is_an_object_or_nothing(line, expected):
    assert parse_object(line) == expected
