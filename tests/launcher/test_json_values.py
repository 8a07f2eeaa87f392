"""Values of JSON from files: what counts as a count, a number, texts, an object."""

import pytest

from neobert.runfiles.json_values import is_count, is_number, is_text_mapping


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
    assert is_text_mapping(value) is expected
