"""When this launch is ended from outside, as far as that is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.slurm import job_end_s
from neobert.training.signals import STOP_BY_ENV
from profiles.registry import ResolvedRun

SECONDS_PER_HOUR = 3600
# Four times what the plan of a smoke profile's run may predict. A plan may be wrong; a clock is not.
SMOKE_HOURS = 1


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a launch.

    Attributes:
        at_s: seconds since the epoch.
        verdict: why the run is not to be queued again behind it; empty where it goes on another time.
    """

    at_s: float
    verdict: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What the trainer is told, to save and stop in time."""
        return {STOP_BY_ENV: f"{self.at_s:.0f}"}


def deadline_of(run: ResolvedRun, environment: Mapping[str, str], started_s: float) -> Deadline | None:
    """Return the earliest end; None where none is known.

    A limit of the config counts from the launch, the end of a Slurm job is where the scheduler puts it.
    """
    return min(_deadlines(run, environment, started_s), key=lambda each: each.at_s, default=None)


def _deadlines(run: ResolvedRun, environment: Mapping[str, str], started_s: float) -> Iterator[Deadline]:
    hours = run.config.guard.walltime_limit_hours
    if hours is not None:
        yield Deadline(started_s + hours * SECONDS_PER_HOUR)
    end_s = job_end_s(environment)
    if end_s is not None:
        yield Deadline(end_s)
    if run.profile is not None and run.profile.kind == "smoke":
        why = f"{run.profile.name} is a smoke profile, whose runs are stopped after {SMOKE_HOURS} hour"
        hint = "its checkpoints are intact; lower trainer.max_steps, or name a production profile"
        yield Deadline(started_s + SMOKE_HOURS * SECONDS_PER_HOUR, f"{why}: {hint}")
