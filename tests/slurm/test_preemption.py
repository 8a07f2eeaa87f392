"""A run on two of three nodes that is preempted, by a real Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.training.conftest import read_lines

pytestmark = pytest.mark.slurm


def steps_in(run_dir: Path) -> list[int]:
    path = run_dir / "metrics.jsonl"
    return [row["step"] for row in read_lines(path)] if path.exists() else []


def test_a_preempted_run_continues_where_it_was(
    cluster: Cluster, run_file: Callable[..., Path], tmp_path: Path
) -> None:
    run, run_dir = run_file(max_steps=60), tmp_path / "run"
    job = cluster.submit(run, "--nodes", "2")
    cluster.until(lambda: len(steps_in(run_dir)) > 10, f"no step: {run_dir}.submit")
    cluster.preempt(job)
    cluster.until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), "the job does not end")
    assert cluster.state(job) == "COMPLETED"
    assert steps_in(run_dir) == list(range(61))
