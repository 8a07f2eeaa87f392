"""Parameters of a launch: command, run directory, limits, deadlines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.probes.scheduler import job_end_s
from launcher.process.trainer_process import Topology, process_log
from launcher.process.waiting_child import WaitingChild
from launcher.run.stages import Stages
from launcher.rundir.records import Record, last_heartbeat
from neobert.clock import seconds_since_boot
from neobert.config.schema import WatchdogConfig
from neobert.runfiles.attempt import is_replaced
from neobert.runfiles.phases import STOP_BY_ENV, STOP_SINCE_BOOT_ENV
from neobert.runfiles.run_dir import LOGS
from neobert.units import SECONDS_PER_HOUR
from profiles.registry import ResolvedRun

# Four times the limit of a smoke profile's planned duration. The plan can be wrong; the clock is not.
SMOKE_HOURS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Parameters of one launch: trainer command, run directory and supervision.

    Attributes:
        folder: path of the run directory.
        held: descriptor of the lock on the run directory, which the trainer keeps open.
        deadlines: times before which the trainer must stop by itself.
        stages: checks of the metrics at given steps; None if --stages is not set.
        attempt: token of the launch in the run directory; empty on a worker node.
        owns_run: whether this launch owns the run directory and may restart the run.
        waiting: process that has imported torch and waits for the first session; None under torchrun.
    """

    command: list[str]
    folder: Path
    topology: Topology
    limits: WatchdogConfig
    error_file: Path
    held: tuple[int, ...] = ()
    deadlines: tuple[Deadline, ...] = ()
    stages: Stages | None = None
    attempt: str = ""
    owns_run: bool = True
    waiting: WaitingChild | None = None

    @property
    def has_agent(self) -> bool:
        """Return whether torchrun runs between the launcher and the ranks."""
        return self.topology.needs_torchrun

    @property
    def is_replaced(self) -> bool:
        """Return whether a later launch has taken over the run, so that this one may not change it."""
        return is_replaced(self.folder, self.attempt)

    @property
    def log(self) -> Path:
        """Log file of the process that this launch starts: the trainer or torchrun."""
        return process_log(self.topology, self.folder / LOGS)

    def newest_heartbeats(self) -> dict[int, Record]:
        """Return the newest heartbeat of every rank of this node."""
        return {rank: last_heartbeat(self.folder, rank) for rank in self.topology.ranks}


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time at which a launch must have ended.

    Attributes:
        at_s: seconds since boot, which clock changes do not affect, or since the epoch.
        verdict: message if the run must not be requeued after that time; empty if it may be.
        is_time_of_day: whether `at_s` counts from the epoch, as schedulers do.
    """

    at_s: float
    verdict: str = ""
    is_time_of_day: bool = False

    @property
    def left_s(self) -> float:
        """Seconds left until the deadline."""
        return self.at_s - (time.time() if self.is_time_of_day else seconds_since_boot())


def find_deadlines(
    run: ResolvedRun, environment: Mapping[str, str], started_s: float
) -> tuple[Deadline, ...]:
    """Return the known deadlines: the limits of the config and of a smoke profile, the end of a Slurm job.

    Args:
        started_s: start of the launch in seconds since boot, from which limits count.
    """
    return tuple(_iterate_deadlines(run, environment, started_s))


def earliest_deadline(deadlines: Sequence[Deadline]) -> Deadline | None:
    """Return the deadline with the least time left, or None if there are no deadlines."""
    return min(deadlines, key=lambda each: each.left_s, default=None)


def deadline_environment(deadlines: Sequence[Deadline]) -> dict[str, str]:
    """Return the environment variables that pass the earliest deadline of each clock to the trainer."""
    first: dict[str, float] = {}
    for each in deadlines:
        name = STOP_BY_ENV if each.is_time_of_day else STOP_SINCE_BOOT_ENV
        first[name] = min(each.at_s, first.get(name, each.at_s))
    return {name: f"{at_s:.0f}" for name, at_s in first.items()}


def _iterate_deadlines(
    run: ResolvedRun, environment: Mapping[str, str], started_s: float
) -> Iterator[Deadline]:
    hours = run.config.guard.walltime_limit_hours
    if hours is not None:
        yield Deadline(started_s + hours * SECONDS_PER_HOUR)
    end_s = job_end_s(environment)
    if end_s is not None:
        yield Deadline(end_s, is_time_of_day=True)
    if run.is_smoke:
        limit = f"{run.config.profile} is a smoke profile, whose runs stop after {SMOKE_HOURS} hour"
        hint = "the checkpoints are intact; lower trainer.max_steps, or set profile to a production profile"
        yield Deadline(started_s + SMOKE_HOURS * SECONDS_PER_HOUR, f"{limit}: {hint}")
