"""Training phases and progress of a process, and environment variables of a run's time limit.

Only the training thread records progress: a repeated heartbeat does not count as progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from neobert.clock import seconds_since_boot

START, COMPILE, STEP = "start", "compile", "train"
DATA_WAIT, COLLECTIVE = "data_wait", "collective"
EVALUATION, SAVE = "eval", "save"
# The first parts of another phase take longer than later ones, and a save ends during training.
LEARNED = (STEP, DATA_WAIT, COLLECTIVE, EVALUATION)
FIRST_STEPS = 3
# Before the first save, a save is assumed to take a minute. A run stops three saves before its limit.
UNSEEN_SAVE_S = 60.0
LEADS = 3
# Times at which a run must stop, set by the launcher for the trainer. A time of day follows the wall clock; a
# time since boot is immune to changes of that clock.
STOP_BY_ENV, STOP_SINCE_BOOT_ENV = "NEOBERT_STOP_BY", "NEOBERT_STOP_SINCE_BOOT"
STOP_CLOCKS: dict[str, Callable[[], float]] = {
    STOP_BY_ENV: time.time,
    STOP_SINCE_BOOT_ENV: seconds_since_boot,
}


class PhaseMark(NamedTuple):
    """Progress record of a process.

    Attributes:
        phase: phase that the process entered or continued.
        step: optimizer steps done; None before the number is known.
        at_s: time of the record, in seconds since the Unix epoch.
    """

    phase: str
    step: int | None
    at_s: float


class PhaseTracker:
    """Latest progress of this process, and the longest time without progress in each phase.

    Attributes:
        last: latest progress record; replaced as a whole, because another thread reads it.
        longest_s: longest time without progress in this session, in seconds by phase.
        doing: description of the progress within the phase; may be empty.
        parts: number of completed parts of the phase (microbatches) and their total; None if unknown.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self.last = PhaseMark(START, None, time.time())
        self.longest_s: dict[str, float] = {}
        self.doing = ""
        self.parts: tuple[int | None, int | None] = (None, None)

    def enter(self, phase: str, step: int | None = None) -> None:
        """Record progress: entry into a phase, or its next part. `step` None: the step is unchanged."""
        now_s = self._clock()
        if self.last.phase in LEARNED:
            self.record_duration(self.last.phase, now_s - self._since_s)
        self._since_s = now_s
        self.last = PhaseMark(phase, self.last.step if step is None else step, time.time())

    def record_duration(self, phase: str, took_s: float) -> None:
        """Record the seconds that one part of a phase took, for `longest_s`."""
        if took_s > self.longest_s.get(phase, 0.0):
            self.longest_s = {**self.longest_s, phase: took_s}

    def tick(self) -> None:
        """Record progress within the current phase."""
        self.enter(self.last.phase)

    def describe(self, doing: str) -> None:
        """Record progress within the current phase, with a description."""
        self.doing = doing
        self.tick()

    def stopping_s(self) -> float:
        """Return the seconds before its time limit at which a run should stop: three steps and saves."""
        save_s = self.longest_s.get(SAVE, UNSEEN_SAVE_S)
        return LEADS * (save_s + self.longest_s.get(STEP, 0.0))
