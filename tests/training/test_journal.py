"""Lines that a run leaves behind read as one history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.training.journal import Journal, keep_rows, read_rows

rows = st.lists(
    st.fixed_dictionaries({"step": st.integers(0, 20), "train/loss": st.floats(0, 20)}), max_size=20
)


def write(path, lines):
    path.unlink(missing_ok=True)
    journal = Journal(path)
    for line in lines:
        journal.append(line)
    journal.close()


@given(lines=rows)
def test_reads_back_to_the_last_bit(tmp_path, lines):
    write(tmp_path / "metrics.jsonl", lines)
    assert read_rows(tmp_path / "metrics.jsonl") == lines


@given(lines=rows, cut=st.integers(0, 60), step=st.integers(0, 20))
def test_trims_a_torn_history_to_a_step(tmp_path, lines, cut, step):
    path = tmp_path / "metrics.jsonl"
    write(path, lines)
    content = path.read_bytes()
    path.write_bytes(content[: max(0, len(content) - cut)])
    whole = path.read_bytes().count(b"\n")
    kept = keep_rows(path, lambda row: row["step"] <= step)
    assert kept == read_rows(path)
    # A cut exactly before the newline leaves a line that is whole.
    assert [row for row in lines[:whole] if row["step"] <= step] == kept[
        : sum(r["step"] <= step for r in lines[:whole])
    ]
    assert not path.read_bytes() or path.read_bytes().endswith(b"\n")


def test_an_appended_line_is_seen_at_once(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.append({"step": 1})
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 1}]
    journal.sync()
    journal.close()


def test_nan_is_never_written(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        journal.append({"train/loss": float("nan")})
    journal.close()
    assert read_rows(tmp_path / "metrics.jsonl") == []


def test_a_missing_history_is_empty(tmp_path):
    assert read_rows(tmp_path / "none.jsonl") == []
    assert keep_rows(tmp_path / "none.jsonl", lambda row: True) == []
