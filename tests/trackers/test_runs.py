"""Real runs with real trackers: the same names and values as in metrics.jsonl, in a resumed run too."""

import os
from pathlib import Path

import pytest

from neobert.trackers.table import TRACKERS
from tests.training.conftest import read_lines, train, write_corpus, write_run

KEYS = ("train/loss", "train/learning_rate", "eval/loss", "perf/kernel_fallbacks")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def trackio_folder(tmp_path_factory):
    """Trackio's own folder, which it reads once, when it is imported."""
    pytest.importorskip("tensorboard")
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder))
        pytest.importorskip("trackio")
        yield folder


def expected(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    lines = read_lines(run_dir / "metrics.jsonl")
    return {key: [(line["step"], line[key]) for line in lines if key in line] for key in KEYS}


def in_tensorboard(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_dir / "tensorboard"))
    found.Reload()
    return {key: [(each.step, each.value) for each in found.Scalars(key)] for key in KEYS}


def in_trackio() -> dict[str, list[tuple[int, float]]]:
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("tiny")
    rows = SQLiteStorage.get_logs("tiny", name)
    return {key: [(row["step"], row[key]) for row in rows if key in row] for key in KEYS}


def approximately(found):
    return {key: [(step, pytest.approx(value, rel=1e-6)) for step, value in found[key]] for key in found}


def test_each_tracker_has_the_values_of_metrics_jsonl(trackio_folder, tmp_path, corpus, monkeypatch, caplog):
    def fail(run):
        raise ConnectionError("no route to wandb")

    monkeypatch.setattr("importlib.metadata.version", lambda package: "1")
    monkeypatch.setitem(TRACKERS, "wandb", TRACKERS["wandb"]._replace(start=fail))
    sections = {"trackers": ["wandb", "trackio", "tensorboard"], "trackio": {"project": "tiny"}}
    run_dir = write_run(tmp_path / "run", corpus, sections)
    assert train(run_dir) == 0
    assert caplog.text.count("no route to wandb") == 1
    (message,) = read_lines(run_dir / "heartbeat_rank0.jsonl")[-1]["warning_messages"].values()
    assert "tracker wandb failed (ConnectionError: no route to wandb)" in message  # `train` prints it
    assert in_tensorboard(run_dir) == approximately(expected(run_dir))  # fp32
    assert in_trackio() == expected(run_dir)

    # A crash after step 12 that lost the checkpoint of step 12: the session from step 10 repeats 11 and 12.
    os.rename(run_dir / "checkpoints/12", run_dir / "checkpoints/.lost")
    assert train(run_dir) == 0
    assert [step for step, _ in expected(run_dir)["train/loss"]] == [3, 6, 9, 12]
    assert in_tensorboard(run_dir) == approximately(expected(run_dir))
    assert [step for step, _ in in_trackio()["train/loss"]] == [3, 6, 9, 12, 12]
