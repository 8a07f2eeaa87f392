import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.yaml_reader import read_scalar

CORE_SCHEMA = {
    "6e-4": 6e-4,
    "1e-5": 1e-5,
    "1E+3": 1000.0,
    "5.": 5.0,
    ".5": 0.5,
    "-0.0": -0.0,
    "+12": 12,
    "017": 17,
    "0o17": 15,
    "0xff": 255,
    "true": True,
    "FALSE": False,
    "null": None,
    "~": None,
    "": None,
}
TEXT = [
    "yes",
    "no",
    "on",
    "off",
    "y",
    "1:30",
    "1_000",
    "2026-12-31",
    "2026-12-31T10:00:00Z",
    "=",
    "<<",
    "0b1",
]
TEXT += ["-0o17", "1e", "e5", ".", "-", "tRue", "nUll", "infinity", "nan", "inf", "0x", "1.2.3", "١"]


@pytest.mark.parametrize(("text", "value"), CORE_SCHEMA.items())
def test_reads_the_core_schema(text, value):
    found = read_scalar(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", TEXT)
def test_what_yaml_1_1_read_otherwise_stays_text(text):
    assert read_scalar(text) == text


@pytest.mark.parametrize("text", [".inf", "-.INF", "+.Inf", ".nan", ".NaN"])
def test_infinities_are_floats_that_are_not_finite(text):
    value = read_scalar(text)
    assert isinstance(value, float)
    assert not math.isfinite(value)


def test_a_huge_integer_is_read_without_a_conversion_error():
    value = read_scalar("9" * 1_000_000)
    assert isinstance(value, int)
    assert value > 2**63 - 1


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63) | st.booleans())
def test_what_python_prints_is_read_back(value):
    assert read_scalar(str(value).lower() if isinstance(value, bool) else repr(value)) == value
