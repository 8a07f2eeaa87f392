"""The end that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.commands import train
from launcher.deadline import stop_by
from launcher.supervision import Launch
from neobert.config.schema import GuardConfig
from neobert.errors import ProjectError


@pytest.mark.parametrize(
    ("hours", "job_end", "expected"),
    [
        (None, "", {}),
        (None, "5000", {"NEOBERT_STOP_BY": "5000"}),
        (1.0, "", {"NEOBERT_STOP_BY": "4600"}),
        (1.0, "5000", {"NEOBERT_STOP_BY": "4600"}),
        (2.0, "5000", {"NEOBERT_STOP_BY": "5000"}),
        (None, "soon", {}),
    ],
)
def test_the_earliest_end_counts(hours: float | None, job_end: str, expected: dict[str, str]) -> None:
    guard = GuardConfig(walltime_limit_hours=hours)
    assert stop_by(guard, {"SLURM_JOB_END_TIME": job_end}, started_s=1000.0) == expected


def test_a_limit_counts_from_the_command_and_not_from_the_end_of_its_checks(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, told, check = [1000.0], [], train.examine

    def examine(*arguments: Any, **named: Any) -> Any:
        now_s[0] += 600
        return check(*arguments, **named)

    def supervise(launch: Launch, *_: Any) -> Any:
        told.append(launch.environment)
        raise ProjectError("enough", "what it was told is known")

    monkeypatch.setattr(train, "time", SimpleNamespace(time=lambda: now_s[0]))
    monkeypatch.setattr(train, "examine", examine)
    monkeypatch.setattr(train, "supervise", supervise)
    monkeypatch.setattr(train, "wait_for_first_node", lambda *_: None)
    run = ("-p", "cpu-demo", "--trainer.output_dir=run", "--set", "guard.walltime_limit_hours=1")
    command("train", *run)
    now_s[0] = 1000.0
    command("train", *run, "--nnodes", "2", "--node-rank", "1", "--master-addr", "a")
    assert told == [{"NEOBERT_STOP_BY": "4600"}] * 2
