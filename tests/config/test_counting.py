"""One thread, two threads; shares in percent."""

import pytest

from neobert.plurals import counted, percent


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 threads"), (1, "1 thread"), (2, "2 threads"), (1000, "1,000 threads")]
)
def test_one_is_singular(number, words):
    assert counted(number, "thread") == words


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0%"),
        (0.0004, "less than 0.1%"),
        (0.0006, "0.1%"),
        (0.123, "12.3%"),
        (0.9994, "99.9%"),
        (0.9995, "more than 99.9%"),
        (1.0, "100.0%"),
    ],
)
def test_only_all_is_a_hundred_percent(share, text):
    assert percent(share) == text
