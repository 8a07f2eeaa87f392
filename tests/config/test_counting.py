"""One thread, two threads."""

from __future__ import annotations

import pytest

from neobert.plurals import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 threads"), (1, "1 thread"), (2, "2 threads"), (1000, "1,000 threads")]
)
def test_one_is_singular(number: int, words: str) -> None:
    assert counted(number, "thread") == words
