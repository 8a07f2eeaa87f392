"""A sweep and a search as arrays of jobs, by a real Slurm."""

import json
from pathlib import Path

import pytest

from tests.slurm.runs import damage_of, launches_of, steps_in

pytestmark = pytest.mark.slurm

SWEEP = ("--sweep", "seed=1,2,3,4")
TRIALS, STEPS = 4, 30
SEARCH = ("--search", "optimizer.lr=log(1e-4,1e-2)", "--trials", str(TRIALS))


def test_a_point_that_is_queued_again_leaves_the_others_alone(cluster, run_file, tmp_path):
    """The last task has the number of the array as its own: it must queue itself again, and not the array."""
    run, base = run_file(max_steps=60), tmp_path / "run"
    array = cluster.submit(run, *SWEEP, "--parallel", "3")
    points = [base / f"seed={seed}" for seed in (1, 2, 3, 4)]
    tasks = [f"{array}_{index}" for index in range(4)]
    cluster.until(lambda: len(steps_in(points[3])) > 5, "the last point does not start")
    cluster.run("scancel", "--signal=TERM", tasks[3])
    cluster.until_restarted(tasks[3], 0)
    cluster.release(tasks[3])
    for task in tasks:
        cluster.until_ended(task)
    assert [cluster.state(task) for task in tasks] == ["COMPLETED"] * 4
    assert [damage_of(point, 60) for point in points] == [[]] * 4
    assert [launches_of(point) for point in points] == [1, 1, 1, 2]
    cluster.run("neobert-launch", "train", run, *SWEEP, "--collect")
    results = json.loads((base / "sweep.json").read_text())["points"]
    assert [each["result"]["status"] for each in results] == ["finished"] * 4


def test_jobs_of_a_search_share_its_trials(cluster, run_file, tmp_path):
    run, base = run_file(max_steps=STEPS), tmp_path / "run"
    array = cluster.submit(run, *SEARCH, "--parallel", "2")
    tasks = [f"{array}_{index}" for index in range(2)]
    cluster.until(lambda: len(steps_in(base / "trial-1")) > 5, "the first trial does not start")
    (first,) = (each for each in tasks if owner_of(base, 1) == each.rpartition("_")[2])
    cluster.run("scancel", "--signal=TERM", first)
    cluster.until_restarted(first, 0)
    cluster.release(first)
    for task in tasks:
        cluster.until_completed(task)
    cluster.run("neobert-launch", "train", run, *SEARCH, "--collect")
    points = json.loads((base / "sweep.json").read_text())["points"]
    assert [each["result"]["status"] for each in points] == ["finished"] * TRIALS
    assert len({str(each["overrides"]) for each in points}) == TRIALS
    trials = [base / f"trial-{number}" for number in range(1, TRIALS + 1)]
    assert [damage_of(trial, STEPS) for trial in trials] == [[]] * TRIALS
    assert [launches_of(trial) for trial in trials] == [2, 1, 1, 1]


def owner_of(base: Path, number: int) -> str:
    """Return the task of the array that asked for a trial."""
    rows = map(json.loads, (base / "study.jsonl").read_text().splitlines())
    attributes = (
        row["user_attr"] for row in rows if row.get("trial_id") == number - 1 and "user_attr" in row
    )
    return str(next(each["array_task"] for each in attributes if "array_task" in each))
