"""Lines that a run leaves behind read as one history."""

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir.records import MetricsTail, last_record, read_metrics
from neobert.training.telemetry.jsonl_writer import JsonlWriter, keep_rows, read_rows, rotated_path

rows = st.lists(
    st.fixed_dictionaries({"step": st.integers(0, 20), "train/loss": st.floats(0, 20)}), max_size=20
)


def write(path, lines):
    path.unlink(missing_ok=True)
    writer = JsonlWriter(path)
    for line in lines:
        writer.append(line)
    writer.close()


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
    keep_rows(path, lambda row: row["step"] <= step)
    kept = read_rows(path)
    # A cut exactly before the newline leaves a line that is whole.
    assert [row for row in lines[:whole] if row["step"] <= step] == kept[
        : sum(r["step"] <= step for r in lines[:whole])
    ]
    assert not path.read_bytes() or path.read_bytes().endswith(b"\n")


@given(content=st.binary(max_size=300), lines=rows, cut=st.integers(0, 80))
def test_every_reader_takes_what_is_whole_and_no_error_from_the_rest(tmp_path, content, lines, cut):
    path = tmp_path / "metrics.jsonl"
    write(path, lines)
    written = path.read_bytes()
    torn = written[: max(0, len(written) - cut)]
    path.write_bytes(torn)
    whole = lines[: torn.count(b"\n")]
    for read in (read_rows, read_metrics):
        assert read(path)[: len(whole)] == whole
    assert (last_record(path) or whole) in (*lines, whole)
    assert [row for row in MetricsTail(path).read_new() if row not in whole] == []
    path.write_bytes(torn + content)
    for read in (read_rows, read_metrics):
        assert all(isinstance(row, dict) for row in read(path))
    assert isinstance(last_record(path), dict)
    assert all(isinstance(row, dict) for row in MetricsTail(path).read_new())


def test_a_line_of_a_thousand_brackets_is_only_a_torn_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + "[" * 100_000 + "\n")
    assert read_rows(path) == read_metrics(path) == [{"step": 1}]


def test_a_full_file_makes_way_for_the_next(tmp_path):
    path = tmp_path / "beat.jsonl"
    writer = JsonlWriter(path, limit_bytes=40)
    for step in range(7):
        writer.append({"step": step, "loss": 1.5})
    writer.append({"long": "x" * 100})
    writer.close()
    assert read_rows(path) == [{"long": "x" * 100}]
    assert read_rows(rotated_path(path)) == [{"step": 6, "loss": 1.5}]


def test_an_appended_line_is_seen_at_once(tmp_path):
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.append({"step": 1})
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 1}]
    writer.sync()
    writer.close()


def test_nan_is_never_written(tmp_path):
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        writer.append({"train/loss": float("nan")})
    writer.close()
    assert read_rows(tmp_path / "metrics.jsonl") == []


def test_a_file_that_cannot_make_way_now_does_so_later(tmp_path):
    path = tmp_path / "beat.jsonl"
    in_the_way = rotated_path(path)
    in_the_way.mkdir()
    writer = JsonlWriter(path, limit_bytes=20)
    writer.append({"step": 0})
    for _ in range(2):
        with pytest.raises(OSError, match=r"beat\.jsonl"):
            writer.append({"step": 1})
    in_the_way.rmdir()
    writer.append({"step": 1})
    writer.close()
    assert (read_rows(in_the_way), read_rows(path)) == ([{"step": 0}], [{"step": 1}])


def test_a_history_that_cannot_be_cut_back_stays_and_leaves_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write(path, [{"step": 1}, {"step": 2}])

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keep_rows(path, lambda row: row["step"] < 2)
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_a_line_that_does_not_fit_tears_neither_itself_nor_the_next(tmp_path):
    path = tmp_path / "beat.jsonl"
    writer = JsonlWriter(path)
    writer.append({"step": 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, hard))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            writer.append({"step": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.append({"step": 2})
    writer.close()
    assert path.read_bytes() == b'{"step": 0}\n{"step": 2}\n'


def test_a_file_system_that_refuses_to_close_costs_nothing(tmp_path):
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.append({"step": 0})
    os.close(writer._file.fileno())
    writer.close()
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 0}]


def test_a_full_disk_names_the_file():
    writer = JsonlWriter(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left") as refusal:
        writer.append({"step": 1})
    writer.close()
    assert str(refusal.value.filename) == "/dev/full"
