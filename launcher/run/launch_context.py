"""Parameters of a launch, and results of its sessions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launcher.process.trainer_process import Topology, log_of
from launcher.run.stages import Stages
from launcher.run.time_limit import Deadline
from launcher.rundir.directory import LOGS
from launcher.rundir.records import Record, last_beat
from launcher.rundir.stalls import Stall
from neobert.config.schema import WatchdogConfig
from neobert.runfiles.location import current_path

# torchrun's report of each rank that had ended when it looked, at the end of its log.
ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)")
# Its message before it stops the ranks that outlive the first failure: by SIGTERM, and after 30 s by SIGKILL.
ASKED_TO_END = re.compile(r"Sending process (\d+) closing signal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch: command, run directory and supervision.

    Attributes:
        folder: the run directory as it was named.
        held: descriptor of the lock on the run directory, which the trainer keeps open.
        deadlines: times at which it must have stopped by itself.
        stages: steps at which the run is judged; None without --stages.
        owns_run: whether this launch owns the run directory and may restart the run.
    """

    command: list[str]
    folder: Path
    topology: Topology
    limits: WatchdogConfig
    error_file: Path
    held: tuple[int, ...] = ()
    deadlines: tuple[Deadline, ...] = ()
    stages: Stages | None = None
    owns_run: bool = True

    @property
    def has_agent(self) -> bool:
        """Return whether torchrun runs between the launcher and the ranks."""
        return self.topology.needs_torchrun

    @property
    def location(self) -> Path:
        """Current path of the run directory; its last path if it was deleted or another node holds it."""
        current = current_path(self.folder, self.held[0]) if self.held else None
        return current or self.folder

    @property
    def is_displaced(self) -> bool:
        """Return whether the run directory was moved or deleted during this launch."""
        return bool(self.held) and current_path(self.folder, self.held[0]) != self.folder

    @property
    def log(self) -> Path:
        """Log of the started process."""
        return log_of(self.topology, self.location / LOGS)

    def beats(self) -> dict[int, Record]:
        """Return the newest heartbeat of every rank of this node."""
        location = self.location
        return {rank: last_beat(location, rank) for rank in self.topology.ranks}


class EndedRank(NamedTuple):
    """Exit code of a rank (negative for a signal), and whether torchrun stopped it."""

    rank: int
    code: int
    was_asked: bool


@dataclass(frozen=True, slots=True)
class Session:
    """Result of one session of the trainer.

    Attributes:
        code: exit code of the child, negative for a signal.
        stall: the hang for which the watchdog stopped it; None otherwise.
        has_begun: whether it wrote a heartbeat.
        first_step: step of the checkpoint that existed before it.
        output: output of torchrun.
        num_stuck: number of its processes that survived SIGKILL.
        earlier_outcome: stamp of an outcome from before the session that this launch must not delete.
        cpu_s: CPU time of its processes, in seconds.
    """

    code: int
    stall: Stall | None
    has_begun: bool
    first_step: int
    output: str
    num_stuck: int = 0
    earlier_outcome: tuple[int, int] | None = None
    cpu_s: float = 0.0

    @property
    def ended(self) -> list[EndedRank]:
        """Ranks in torchrun's report, the first failure last."""
        asked = set(ASKED_TO_END.findall(self.output))
        return [
            EndedRank(int(rank), int(code), pid in asked) for rank, code, pid in ENDED.findall(self.output)
        ]

    @property
    def trainer_code(self) -> int:
        """Exit code of the trainer itself: torchrun exits with 1 for any code of its ranks."""
        return self.ended[-1].code if self.code > 0 and self.ended else self.code


def lost_rank(session: Session, *, has_agent: bool) -> tuple[int | None, int] | None:
    """Return the killed rank and its signal; rank None is torchrun itself. None if no process was killed.

    Other ranks fail because the lost one is missing. torchrun polls ten times a second and may take one of
    them for the first failure; one that waits for the lost rank on a device is killed by torchrun.
    """
    if session.code < 0:
        return None if has_agent else 0, -session.code
    lost = (each for each in reversed(session.ended) if each.code < 0 and not each.was_asked)
    return next(((each.rank, -each.code) for each in lost), None)
