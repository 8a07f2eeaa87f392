"""The history as tables and as a summary: what the lines hold, whoever ended the run, in bounded memory."""

import csv
import json
import tracemalloc
from pathlib import Path

import pytest

from neobert.errors import ProjectError
from neobert.training.telemetry import metric_files
from neobert.training.telemetry.metric_files import SUMMARY, TRAINING, VALIDATION, write_metric_files
from tests.killed_run import change_losses

LINES = [
    {"step": 0, "eval/loss": 5.0, "eval/accuracy": None, "time/evaluation_ms": 9.0},
    {"step": 10, "train/loss": 4.0, "perf/mfu": None, "train/grad_norm": 1.5},
    {"step": 20, "train/loss": 3.0, "perf/mfu": None, "extra": 7, "eval/loss": 3.5, "eval/accuracy": 0.25},
    {"step": 30, "train/loss": 3.25, "perf/mfu": None, "train/grad_norm": 0.5},
]


def write(folder: Path, lines: list[dict], tail: str = "") -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + tail, encoding="utf-8")


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_tables_have_a_row_for_each_line_and_the_names_of_the_metrics(tmp_path):
    write(tmp_path, LINES)
    write_metric_files(tmp_path)
    assert table(tmp_path / TRAINING) == [
        ["step", "train/loss", "perf/mfu", "train/grad_norm", "extra"],
        ["10", "4.0", "", "1.5", ""],
        ["20", "3.0", "", "", "7"],
        ["30", "3.25", "", "0.5", ""],
    ]
    assert table(tmp_path / VALIDATION) == [
        ["step", "eval/loss", "eval/accuracy", "time/evaluation_ms"],
        ["0", "5.0", "", "9.0"],
        ["20", "3.5", "0.25", ""],
    ]


def test_the_summary_has_last_and_best_values_with_their_steps(tmp_path):
    write(tmp_path, LINES)
    write_metric_files(tmp_path)
    summary = json.loads((tmp_path / SUMMARY).read_text(encoding="utf-8"))
    assert (summary["schema_version"], summary["step"]) == (1, 30)
    assert summary["metrics"] == {
        "eval/loss": {"last": 3.5, "last_step": 20, "best": 3.5, "best_step": 20},
        "time/evaluation_ms": {"last": 9.0, "last_step": 0},
        "train/loss": {"last": 3.25, "last_step": 30, "best": 3.0, "best_step": 20},
        "train/grad_norm": {"last": 0.5, "last_step": 30},
        "extra": {"last": 7, "last_step": 20},
        "eval/accuracy": {"last": 0.25, "last_step": 20, "best": 0.25, "best_step": 20},
    }


def test_what_is_no_line_and_no_number_is_left_out(tmp_path):
    hostile = [{"step": "7", "train/loss": 1.0}, {"train/loss": 1.0}, {"step": 1, "train/loss": "=cmd()"}]
    write(tmp_path, hostile, '[1]\n{"step": 2, "train/lo')
    write_metric_files(tmp_path)
    assert table(tmp_path / TRAINING) == [["step", "train/loss"], ["1", ""]]
    assert not (tmp_path / SUMMARY).exists()


def test_a_long_history_takes_little_memory(tmp_path):
    with (tmp_path / "metrics.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"step": step, "train/loss": 1 / (step + 1)}) + "\n" for step in range(4_000)
        )
    tracemalloc.start()
    try:
        write_metric_files(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**18  # the lines are 190 KiB of text, 1.3 MiB as dicts
    finally:
        tracemalloc.stop()
    assert len(table(tmp_path / TRAINING)) == 4_001


def test_a_disk_that_refuses_is_logged_and_leaves_no_part(tmp_path, monkeypatch, caplog):
    write(tmp_path, LINES)

    def refuse(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metric_files.csv, "writer", refuse)
    write_metric_files(tmp_path)
    assert "could not be written" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_run_that_fails_leaves_them_and_its_next_session_writes_them_again(
    make_run, run, metrics, monkeypatch
):
    change_losses(monkeypatch, [14], lambda loss: loss * float("nan"))
    run_dir = make_run()
    with pytest.raises(ProjectError, match="not finite"):
        run(run_dir)
    assert [row[0] for row in table(run_dir / TRAINING)[1:]] == ["3", "6"]
    assert run(run_dir) == 0
    assert [row[0] for row in table(run_dir / TRAINING)[1:]] == ["3", "6", "9", "12"]
    assert [row[0] for row in table(run_dir / VALIDATION)[1:]] == ["0", "4", "8", "12"]
    summary = json.loads((run_dir / SUMMARY).read_text(encoding="utf-8"))
    last = metrics(run_dir)[-1]
    assert summary["step"] == 12
    assert summary["metrics"]["eval/loss"]["last"] == last["eval/loss"]
