"""When this launch is ended from outside, as far as that is known beforehand."""

from __future__ import annotations

from collections.abc import Mapping

from neobert.config.schema import GuardConfig
from neobert.training.signals import STOP_BY_ENV

JOB_END_ENV = "SLURM_JOB_END_TIME"
SECONDS_PER_HOUR = 3600


def stop_by(guard: GuardConfig, environment: Mapping[str, str], started_s: float) -> dict[str, str]:
    """What the trainer is told: the earliest end, in seconds since the epoch; nothing where none is known.

    A limit of the config counts from the launch, the end of a Slurm job is where the scheduler puts it.
    """
    ends = []
    if guard.walltime_limit_hours is not None:
        ends.append(started_s + guard.walltime_limit_hours * SECONDS_PER_HOUR)
    if environment.get(JOB_END_ENV, "").isdigit():
        ends.append(float(environment[JOB_END_ENV]))
    return {STOP_BY_ENV: f"{min(ends):.0f}"} if ends else {}
