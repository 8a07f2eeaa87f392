"""Restart policy: a failed run restarts a limited number of times, and never after a repeated failure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from launcher.process.termination import signal_name
from launcher.rundir.stalls import Stall
from neobert.errors import EXIT_DO_NOT_REQUEUE, EXIT_TRAINING_FAILED, ProjectError
from neobert.plurals import counted
from neobert.runfiles.phases import COLLECTIVE, DATA_WAIT, SAVE, START
from neobert.runfiles.run_dir import CODE as MISSING

# Causes outside the run that may be transient: a disk, a network, host memory.
PASSING_PHASES = (START, DATA_WAIT, COLLECTIVE, SAVE)
PASSING_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
PASSING_CODES = ("DAT010",)
# No restart helps: space has to be freed first, or each session degrades again from a newer checkpoint, or a
# file of a plug-in was edited.
FINAL_CODES = ("CKP004", "DGR001", "DGR002", "PLG003", MISSING)


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a session.

    Attributes:
        cause: phase of a stall, signal of a killed process, or code of a reported error.
        step: completed optimizer steps.
        is_transient: whether the cause may be outside the run, so that a repeated failure is retried.
    """

    kind: Literal["stall", "lost", "reported"]
    cause: str
    step: int
    message: str
    is_transient: bool
    hint: str = ""

    def is_like(self, other: Failure) -> bool:
        """Return whether both failures have the same kind, cause and step."""
        return (self.kind, self.cause, self.step) == (other.kind, other.cause, other.step)


def of_stall(stall: Stall, step: int) -> Failure:
    """Return the failure of a session that hung."""
    is_transient = stall.phase in PASSING_PHASES
    return Failure("stall", stall.phase, step, str(stall), is_transient=is_transient)


def of_lost(rank: int | None, number: int, step: int) -> Failure:
    """Return the failure of a session in which a signal killed a rank, or torchrun (rank None).

    Args:
        number: the signal.
    """
    name = signal_name(number)
    hint = "; the kernel does that when memory runs out" if number == signal.SIGKILL else ""
    process = "torchrun" if rank is None else f"rank {rank}"
    message = f"{process} was killed by {name}{hint}"
    return Failure("lost", name, step, message, is_transient=number in PASSING_SIGNALS)


def of_error(error: ProjectError, step: int) -> Failure:
    """Return the failure of a session that reported an error."""
    is_transient = error.code in PASSING_CODES
    return Failure("reported", error.code, step, error.message, is_transient=is_transient, hint=error.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Decision about a failed run: restart it, or end it with this exit code and reason."""

    restarts: bool
    exit_code: int = EXIT_TRAINING_FAILED
    reason: str = ""


@dataclass(slots=True)
class Restarts:
    """Failures of one launch, and its restarts since the newest checkpoint (`in_a_row`, at most `most`)."""

    most: int
    failures: list[Failure] = field(default_factory=list)
    in_a_row: int = 0
    _saved_step: int = -1

    def judge(self, failure: Failure, saved_step: int) -> Verdict:
        """Record a failure and decide whether to restart.

        Args:
            saved_step: step of the newest checkpoint; 0 if there is none.
        """
        before = self.failures[-1] if self.failures else None
        self.failures.append(failure)
        if before is not None and failure.is_like(before) and not failure.is_transient:
            reason = f"same failure twice at step {failure.step}: not retrying"
            return Verdict(restarts=False, exit_code=EXIT_DO_NOT_REQUEUE, reason=reason)
        # A newer checkpoint is progress, so earlier restarts no longer count.
        if saved_step > self._saved_step:
            self.in_a_row, self._saved_step = 0, saved_step
        if self.in_a_row >= self.most:
            limit = f"no new checkpoint after {counted(self.most, 'restart')}: not retrying"
            return Verdict(restarts=False, reason=limit if self.most else "")
        self.in_a_row += 1
        return Verdict(restarts=True)
