"""A history of days: what reads it keeps what it needs, and no more."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.run.summary import summarize_run
from launcher.rundir.records import MetricsTail
from neobert.training.telemetry.jsonl_writer import Row, keep_rows

NUM_STEPS = 20_000
LIMIT_BYTES = 1_000_000


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of 20,000 lines, 4 MB, with an evaluation every 1,000."""
    with (tmp_path / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(NUM_STEPS):
            row: Row = {"step": step, "train/loss": 9 - step / NUM_STEPS, "x": "y" * 150}
            file.write(json.dumps(row | ({"eval/loss": 1.0} if step % 1000 == 500 else {})) + "\n")
        file.write('{"step": 20000, "train/lo')
    return tmp_path


@pytest.fixture
def peak_bytes() -> Callable[[Callable[[], Any]], tuple[Any, int]]:
    """Return what a call returns, and the memory that it needed at most."""

    def measure(call: Callable[[], Any]) -> tuple[Any, int]:
        tracemalloc.start()
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result, peak

    return measure


def test_the_end_of_a_long_run_is_read_in_constant_memory(run_dir, peak_bytes):
    ending, peak = peak_bytes(lambda: summarize_run(run_dir, 0, (), None, verdict={"exit_code": 0}))
    assert (ending.first_eval_step, ending.last_eval_step) == (500, NUM_STEPS - 500)
    assert peak < LIMIT_BYTES


def test_what_earlier_sessions_showed_is_passed_over_in_constant_memory(run_dir, peak_bytes):
    tail = MetricsTail(run_dir / "metrics.jsonl", NUM_STEPS - 3)
    fresh, peak = peak_bytes(tail.read_new)
    assert [row["step"] for row in fresh] == [NUM_STEPS - 2, NUM_STEPS - 1]
    assert peak < LIMIT_BYTES
    with tail.path.open("a", encoding="utf-8") as file:
        file.write('ss": 1.0}\n')
    assert [row["step"] for row in tail.read_new()] == [NUM_STEPS]


def test_a_long_history_is_cut_back_in_constant_memory_and_to_the_byte(run_dir, peak_bytes):
    path = run_dir / "metrics.jsonl"
    before = path.read_bytes().splitlines(keepends=True)
    _, peak = peak_bytes(lambda: keep_rows(path, lambda row: row["step"] < 15_000))
    assert path.read_bytes() == b"".join(before[:15_000])
    assert peak < LIMIT_BYTES
