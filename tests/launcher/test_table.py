"""Tables on terminals of every width, and without one."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.terminal import console
from launcher.terminal.fold import cut_end, cut_start, display_width, fold, reflow
from launcher.terminal.table import format_columns

ROWS = [
    ["time", "41 h", "50,000 steps of 3 s each, as a rehearsal measured"],
    ["memory", "24 of 79 GiB", "measured"],
]
WORD = st.text("abcdefgh", min_size=1, max_size=12)
SENTENCE = st.lists(WORD, min_size=1, max_size=12).map(" ".join)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch):
    return lambda width: monkeypatch.setattr(console, "terminal_width", lambda: width)


def test_without_a_terminal_lines_are_of_any_length(terminal):
    terminal(0)
    assert format_columns(ROWS, indent="  ").splitlines() == [
        "  time    41 h          50,000 steps of 3 s each, as a rehearsal measured",
        "  memory  24 of 79 GiB  measured",
    ]


def test_wide_characters_take_two_columns(terminal):
    terminal(0)
    assert format_columns([["日本語", "a"], ["text", "b"]]).splitlines() == ["日本語  a", "text    b"]


def test_a_text_is_cut_to_columns():
    for width in range(8):
        for cut in (cut_end, cut_start):
            assert display_width(cut("日本語a", width)) <= width
    assert cut_end("日本語", 5) == "日本…"
    assert cut_start("日本語", 4) == "…語"
    assert display_width("e\N{COMBINING ACUTE ACCENT}") == 1


def test_the_last_column_is_broken_in_its_place(terminal):
    terminal(72)
    assert format_columns(ROWS, indent="  ").splitlines() == [
        "  time    41 h          50,000 steps of 3 s each, as a rehearsal",
        "                        measured",
        "  memory  24 of 79 GiB  measured",
    ]


def test_it_goes_below_its_row_where_there_is_no_room_at_all(terminal):
    terminal(32)
    rows = [["time", "unknown (no price is set)", "50,000 steps of 3 s each"], *ROWS[1:]]
    assert format_columns(rows, indent="  ").splitlines() == [
        "  time",
        "      unknown (no price is set)",
        "      50,000 steps of 3 s each",
        "  memory  24 of 79 GiB",
        "      measured",
    ]


def test_sentences_are_not_squeezed_and_values_stay_beside_their_names(terminal):
    terminal(70)
    assert format_columns(ROWS, indent="  ").splitlines()[:2] == [
        "  time    41 h",
        "          50,000 steps of 3 s each, as a rehearsal measured",
    ]
    terminal(40)
    assert format_columns(
        [["cost", "unknown (guard.price_per_gpu_hour is not set)", "why"]]
    ).splitlines() == [
        "cost  unknown (guard.price_per_gpu_hour",
        "      is not set)",
        "      why",
    ]


def test_what_cannot_be_broken_stays_whole(terminal):
    terminal(40)
    path = "/a/path/that/is/longer/than/the/terminal/is/wide"
    assert path in format_columns([["a", "b", f"written to {path}"]])
    assert path in fold(f"it was written to {path} in the end", 40).splitlines()[1]


def test_the_paragraphs_of_a_page_are_filled_and_its_code_is_not():
    code = "```yaml\ntrainer:\n  save_steps: 250  # as often as that\n```"
    page = f"A run that saves\nnothing at all.\n\n## Why is that so bad for you\nIt is.\n\n{code}\n"
    assert reflow(page, 24).split("\n\n") == [
        "A run that saves nothing\nat all.",
        "## Why is that so bad for you\nIt is.",
        f"{code}\n",
    ]
    assert reflow(page, 40) == reflow(page, 0) == page


@given(st.lists(WORD, min_size=1, max_size=30), st.integers(20, 100))
def test_folding_loses_no_word_and_keeps_to_the_width(words, width):
    text = fold(" ".join(words), width)
    assert text.split() == words
    assert max(map(len, text.splitlines())) <= width


def test_a_line_broken_between_two_spaces_is_indented_like_others():
    folded = fold("loss 6.4  memory 616 MiB  saved 5 s ago", 24)
    assert folded == "loss 6.4  memory 616 MiB\n    saved 5 s ago"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(WORD, WORD, SENTENCE), min_size=1, max_size=4),
    st.integers(60, 140),
)
def test_no_word_is_lost_and_no_line_is_longer_than_the_terminal(terminal, rows, width):
    terminal(width)
    text = format_columns(rows, indent="  ")
    assert text.split() == [word for row in rows for word in " ".join(row).split()]
    assert max(map(len, text.splitlines())) <= width


def test_a_pipe_is_no_terminal(capsys):
    assert console.terminal_width() == 0
