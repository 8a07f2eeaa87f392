"""A sweep as an array of jobs, by a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.runs import damage_of, launches_of, steps_in

pytestmark = pytest.mark.slurm

SWEEP = ("--sweep", "seed=1,2,3,4")


def test_a_point_that_is_queued_again_leaves_the_others_alone(
    cluster: Cluster, run_file: Callable[..., Path], tmp_path: Path
) -> None:
    """The last task has the number of the array as its own: it must queue itself again, and not the array."""
    run, base = run_file(max_steps=60), tmp_path / "run"
    array = cluster.submit(run, *SWEEP, "--parallel", "3")
    points = [base / f"seed={seed}" for seed in (1, 2, 3, 4)]
    tasks = [f"{array}_{index}" for index in range(4)]
    cluster.until(lambda: len(steps_in(points[3])) > 5, "the last point does not start")
    cluster.ask("scancel", "--signal=TERM", tasks[3])
    cluster.until_restarted(tasks[3], 0)
    cluster.release(tasks[3])
    for task in tasks:
        cluster.until_ended(task)
    assert [cluster.state(task) for task in tasks] == ["COMPLETED"] * 4
    assert [damage_of(point, 60) for point in points] == [[]] * 4
    assert [launches_of(point) for point in points] == [1, 1, 1, 2]
    cluster.ask("neobert-launch", "train", run, *SWEEP, "--collect")
    results = json.loads((base / "sweep.json").read_text())["points"]
    assert [each["result"]["status"] for each in results] == ["finished"] * 4
