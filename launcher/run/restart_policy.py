"""Whether a run that failed is begun again: not for ever, and not where it would fail in the same way."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from launcher.process.cpu_limit import cpu_limit_s
from launcher.process.termination import signal_name
from launcher.rundir.stalls import Stall
from neobert.errors import EXIT_DO_NOT_REQUEUE, EXIT_TRAINING_FAILED, ProjectError
from neobert.runfiles.location import CODE as MOVED
from neobert.runfiles.phases import COLLECTIVE, DATA_WAIT, SAVE, START

# What may be otherwise at another time, whatever the run does: a disk, a network, the kernel's memory.
PASSING_PHASES = (START, DATA_WAIT, COLLECTIVE, SAVE)
PASSING_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
PASSING_CODES = ("DAT010",)
# Somebody has to make room first; or a session would slow down again, each time from a newer checkpoint.
FINAL_CODES = ("CKP004", "DGR001", MOVED)


@dataclass(frozen=True, slots=True)
class Failure:
    """How a session failed.

    Attributes:
        cause: what has to be the same for another failure to be the same: a phase, a signal, a code.
        step: optimizer steps done.
        may_pass: whether the cause may lie outside the run.
    """

    kind: Literal["stall", "lost", "told"]
    cause: str
    step: int
    message: str
    may_pass: bool

    def is_like(self, other: Failure) -> bool:
        """Whether both failed in the same way at the same place."""
        return (self.kind, self.cause, self.step) == (other.kind, other.cause, other.step)


def of_stall(stall: Stall, step: int) -> Failure:
    """A session that stood still."""
    return Failure("stall", stall.phase, step, str(stall), stall.phase in PASSING_PHASES)


def of_lost(rank: int | None, number: int, step: int, *, has_used_up_cpu: bool = False) -> Failure:
    """A session one of whose ranks was killed, or torchrun above them."""
    name = signal_name(number)
    hint = "; the kernel does that when memory runs out" if number == signal.SIGKILL else ""
    if has_used_up_cpu:
        hint = f" at its CPU time limit{f' of {limit} s' if (limit := cpu_limit_s()) else ''}"
    who = "torchrun" if rank is None else f"rank {rank}"
    message = f"{who} was killed by {name}{hint}"
    return Failure("lost", name, step, message, number in PASSING_SIGNALS)


def of_error(error: ProjectError, step: int) -> Failure:
    """A session that said what was wrong."""
    return Failure("told", error.code, step, error.message, error.code in PASSING_CODES)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a failed run: it is begun again, or it ends with this code, for this reason."""

    begins_again: bool
    exit_code: int = EXIT_TRAINING_FAILED
    reason: str = ""


@dataclass(slots=True)
class Restarts:
    """The failures of one launch. A newer checkpoint than at the last one makes them few again."""

    most: int
    failures: list[Failure] = field(default_factory=list)
    in_a_row: int = 0
    _saved_step: int = -1

    def judge(self, failure: Failure, saved_step: int) -> Verdict:
        """Decide about one more failure, with the newest checkpoint's step; 0 where there is none."""
        before = self.failures[-1] if self.failures else None
        self.failures.append(failure)
        if before is not None and failure.is_like(before) and not failure.may_pass:
            words = f"it failed at step {failure.step} in the same way twice: another try cannot help"
            return Verdict(False, EXIT_DO_NOT_REQUEUE, words)
        if saved_step > self._saved_step:
            self.in_a_row, self._saved_step = 0, saved_step
        if self.in_a_row >= self.most:
            words = f"{self.most} restarts have not brought it to another checkpoint" if self.most else ""
            return Verdict(False, reason=words)
        self.in_a_row += 1
        return Verdict(True)
