"""What is started, and how one session of it ended."""

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

# What torchrun says of each rank that had ended when it looked, at the end of its log.
ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)")
# What it says before it ends those that outlive the first to fail: by SIGTERM, and half a minute later kills.
ASKED_TO_END = re.compile(r"Sending process (\d+) closing signal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is started, and how it is watched.

    Attributes:
        folder: the run directory as it was named.
        held: the descriptor that claims the run directory; the trainer keeps it open.
        deadlines: when it has to have stopped by itself.
        stages: steps at which the run is judged; None where none were asked for.
        owns_run: whether this launch keeps the run directory, and may begin the run again.
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
        """Whether torchrun stands between us and the ranks."""
        return self.topology.needs_torchrun

    @property
    def location(self) -> Path:
        """Where the run directory is now; where it was, if it is gone or another node holds it."""
        found = current_path(self.folder, self.held[0]) if self.held else None
        return found or self.folder

    @property
    def is_displaced(self) -> bool:
        """Whether the run directory was moved or deleted during this launch."""
        return bool(self.held) and current_path(self.folder, self.held[0]) != self.folder

    @property
    def log(self) -> Path:
        """The output of the process that is started."""
        return log_of(self.topology, self.location / LOGS)

    def beats(self) -> dict[int, Record]:
        """The newest heartbeat of every rank of this node."""
        location = self.location
        return {rank: last_beat(location, rank) for rank in self.topology.ranks}


class EndedRank(NamedTuple):
    """A rank's exit code, negative for a signal, and whether it was torchrun that asked it to end."""

    rank: int
    code: int
    was_asked: bool


@dataclass(frozen=True, slots=True)
class Session:
    """How one session of the trainer ended.

    Attributes:
        code: the child's exit code, negative for a signal.
        stall: why it was ended, where the watchdog ended it.
        has_begun: whether it got as far as a heartbeat.
        first_step: step of the checkpoint that was there before it.
        said: what torchrun printed.
        num_stuck: processes of it that even SIGKILL did not end.
        found: the stamp of the outcome that lay there before it, where that is not ours to take away.
        cpu_s: CPU time of its processes, in seconds.
    """

    code: int
    stall: Stall | None
    has_begun: bool
    first_step: int
    said: str
    num_stuck: int = 0
    found: tuple[int, int] | None = None
    cpu_s: float = 0.0

    @property
    def ended(self) -> list[EndedRank]:
        """The ranks as torchrun tells of them, the first that it saw last."""
        asked = set(ASKED_TO_END.findall(self.said))
        return [EndedRank(int(rank), int(code), pid in asked) for rank, code, pid in ENDED.findall(self.said)]

    @property
    def trainer_code(self) -> int:
        """The code of the trainer itself: torchrun ends with 1, whatever its ranks ended with."""
        return self.ended[-1].code if self.code > 0 and self.ended else self.code


def lost_rank(session: Session, *, has_agent: bool) -> tuple[int | None, int] | None:
    """The rank that was killed, and by which signal; the others end for want of it. None is torchrun itself.

    torchrun looks ten times a second and may take one of those for the first to fail. One that waits for the
    lost rank on a device is killed too, by torchrun.
    """
    if session.code < 0:
        return None if has_agent else 0, -session.code
    lost = (each for each in reversed(session.ended) if each.code < 0 and not each.was_asked)
    return next(((each.rank, -each.code) for each in lost), None)
