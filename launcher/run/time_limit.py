"""Time limits of a launch: config, profile and Slurm job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.io.slurm import job_end_s
from neobert.clock import since_boot_s
from neobert.runfiles.stop_times import STOP_BY_ENV, STOP_SINCE_BOOT_ENV
from profiles.registry import ResolvedRun

SECONDS_PER_HOUR = 3600
# Four times the limit of a smoke profile's planned duration. The plan can be wrong; the clock is not.
SMOKE_HOURS = 1


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time at which a launch must have ended.

    Attributes:
        at_s: seconds since boot, which clock changes do not affect, or since the epoch.
        verdict: why the run must not be requeued after that time; empty if it may be.
        is_time_of_day: whether `at_s` counts from the epoch, as schedulers do.
    """

    at_s: float
    verdict: str = ""
    is_time_of_day: bool = False

    @property
    def left_s(self) -> float:
        """Seconds left until then."""
        return self.at_s - (time.time() if self.is_time_of_day else since_boot_s())


def deadlines_of(run: ResolvedRun, environment: Mapping[str, str], started_s: float) -> tuple[Deadline, ...]:
    """Return the known deadlines: limits of the config and the profile, the end of a Slurm job.

    Args:
        started_s: start of the launch in seconds since boot, from which limits count.
    """
    return tuple(_deadlines(run, environment, started_s))


def nearest(deadlines: Sequence[Deadline]) -> Deadline | None:
    """Return the earliest deadline; None without any."""
    return min(deadlines, key=lambda each: each.left_s, default=None)


def environment_of(deadlines: Sequence[Deadline]) -> dict[str, str]:
    """Return the variables by which the trainer stops in time: the earliest deadline of each clock."""
    first: dict[str, float] = {}
    for each in deadlines:
        name = STOP_BY_ENV if each.is_time_of_day else STOP_SINCE_BOOT_ENV
        first[name] = min(each.at_s, first.get(name, each.at_s))
    return {name: f"{at_s:.0f}" for name, at_s in first.items()}


def _deadlines(run: ResolvedRun, environment: Mapping[str, str], started_s: float) -> Iterator[Deadline]:
    hours = run.config.guard.walltime_limit_hours
    if hours is not None:
        yield Deadline(started_s + hours * SECONDS_PER_HOUR)
    end_s = job_end_s(environment)
    if end_s is not None:
        yield Deadline(end_s, is_time_of_day=True)
    if run.profile is not None and run.profile.kind == "smoke":
        limit = f"{run.profile.name} is a smoke profile, whose runs stop after {SMOKE_HOURS} hour"
        hint = "its checkpoints are intact; lower trainer.max_steps, or set profile to a production profile"
        yield Deadline(started_s + SMOKE_HOURS * SECONDS_PER_HOUR, f"{limit}: {hint}")
