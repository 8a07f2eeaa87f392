"""The end that is known beforehand."""

from types import SimpleNamespace
from typing import Any

import pytest

from launcher.commands import train
from launcher.run.launch_context import Launch, deadline_environment, earliest_deadline, find_deadlines
from neobert.errors import ProjectError
from profiles.registry import resolve_run

A100, SMOKE = "a100-prod", "gpu-smoke"


@pytest.mark.parametrize(
    ("profile", "hours", "job_end", "expected"),
    [
        (A100, None, "", None),
        (A100, None, "5000", 5000),
        (A100, 1.0, "", 4600),
        (A100, 1.0, "5000", 4600),
        (A100, 2.0, "5000", 5000),
        (A100, None, "soon", None),
        (SMOKE, None, "", 4600),
        (SMOKE, 0.5, "", 2800),
        (SMOKE, None, "3000", 3000),
        (SMOKE, None, "5000", 4600),
    ],
)
def test_the_earliest_end_counts(profile, hours, job_end, expected, monkeypatch):
    monkeypatch.setattr("launcher.run.launch_context.seconds_since_boot", lambda: 1000.0)
    monkeypatch.setattr("launcher.run.launch_context.time", SimpleNamespace(time=lambda: 1000.0))
    limit = "null" if hours is None else str(hours)
    run = resolve_run(profile, (), [f"guard.walltime_limit_hours={limit}"])
    found = earliest_deadline(find_deadlines(run, {"SLURM_JOB_END_TIME": job_end}, started_s=1000.0))
    assert (found and found.at_s) == expected
    assert bool(found and found.verdict) == (profile == SMOKE and expected == 4600)


@pytest.mark.child
def test_a_limit_counts_from_the_command_and_not_from_the_end_of_its_checks(command, monkeypatch):
    now_s, reported, check = [1000.0], [], train.examine

    def examine(*arguments: Any, **named: Any) -> Any:
        now_s[0] += 600
        return check(*arguments, **named)

    def supervise(launch: Launch, *_: Any) -> Any:
        reported.append(deadline_environment(launch.deadlines))
        raise ProjectError("enough", "what it was told is known")

    monkeypatch.setattr(train, "seconds_since_boot", lambda: now_s[0])
    monkeypatch.setattr(train, "examine", examine)
    monkeypatch.setattr(train, "supervise", supervise)
    monkeypatch.setattr(train, "wait_for_first_node", lambda *_: None)
    run = ("-p", "cpu-demo", "--trainer.output_dir=run", "--set", "guard.walltime_limit_hours=0.5")
    command("train", *run)
    now_s[0] = 1000.0
    command("train", *run, "--nnodes", "2", "--node-rank", "1", "--master-addr", "a")
    assert reported == [{"NEOBERT_STOP_SINCE_BOOT": "2800"}] * 2
