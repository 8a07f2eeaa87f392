"""Tables on terminals of every width, and without one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher import console
from launcher.ui.table import columns

ROWS = [
    ["time", "41 h", "50,000 steps of 3 s each, as a rehearsal measured"],
    ["memory", "24 of 79 GiB", "measured"],
]
WORD = st.text("abcdefgh", min_size=1, max_size=12)
SENTENCE = st.lists(WORD, min_size=1, max_size=12).map(" ".join)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch):
    return lambda width: monkeypatch.setattr(console, "width", lambda: width)


def test_without_a_terminal_lines_are_of_any_length(terminal):
    terminal(0)
    assert columns(ROWS, indent="  ").splitlines() == [
        "  time    41 h          50,000 steps of 3 s each, as a rehearsal measured",
        "  memory  24 of 79 GiB  measured",
    ]


def test_the_last_column_is_broken_in_its_place(terminal):
    terminal(56)
    assert columns(ROWS, indent="  ").splitlines() == [
        "  time    41 h          50,000 steps of 3 s each, as a",
        "                        rehearsal measured",
        "  memory  24 of 79 GiB  measured",
    ]


def test_it_goes_under_the_one_before_where_there_is_no_room(terminal):
    terminal(46)
    assert columns(ROWS, indent="  ").splitlines() == [
        "  time    41 h",
        "          50,000 steps of 3 s each, as a",
        "          rehearsal measured",
        "  memory  24 of 79 GiB  measured",
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(WORD, WORD, SENTENCE), min_size=1, max_size=4),
    st.integers(60, 140),
)
def test_no_word_is_lost_and_no_line_is_longer_than_the_terminal(terminal, rows, width):
    terminal(width)
    text = columns(rows, indent="  ")
    assert text.split() == [word for row in rows for word in " ".join(row).split()]
    assert max(map(len, text.splitlines())) <= width


def test_a_pipe_is_no_terminal(capsys):
    assert console.width() == 0
