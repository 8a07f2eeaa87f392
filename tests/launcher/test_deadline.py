"""The end that is known beforehand."""

from __future__ import annotations

import pytest

from launcher.deadline import stop_by
from neobert.config.schema import GuardConfig


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
