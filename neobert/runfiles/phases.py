"""Phases of a process, and the times at which a run must stop.

A mark shows progress, not liveness: the thread that repeats heartbeats sets no marks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from neobert.clock import since_boot_s

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
STOP_CLOCKS: dict[str, Callable[[], float]] = {STOP_BY_ENV: time.time, STOP_SINCE_BOOT_ENV: since_boot_s}


class Mark(NamedTuple):
    """Record of progress.

    Attributes:
        phase: activity of the process from this time on.
        step: optimizer steps done; None before the number is known.
        at_s: seconds since the epoch.
    """

    phase: str
    step: int | None
    at_s: float


class PhaseTracker:
    """Latest progress of this process, and the longest time without progress in each phase.

    Attributes:
        last: replaced as a whole, because another thread reads it.
        longest_s: by phase, of this session.
        doing: progress within the phase as text; empty if there is none.
        parts: completed parts of the phase, and their total; None if the total is unknown.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self.last = Mark(START, None, time.time())
        self.longest_s: dict[str, float] = {}
        self.doing = ""
        self.parts: tuple[int | None, int | None] = (None, None)

    def enter(self, phase: str, step: int | None = None) -> None:
        """Enter a phase, or its next part (a microbatch)."""
        now_s = self._clock()
        if self.last.phase in LEARNED:
            self.learn(self.last.phase, now_s - self._since_s)
        self._since_s = now_s
        self.last = Mark(phase, self.last.step if step is None else step, time.time())

    def learn(self, phase: str, took_s: float) -> None:
        """Record how long one part of a phase took."""
        if took_s > self.longest_s.get(phase, 0.0):
            self.longest_s = {**self.longest_s, phase: took_s}

    def tick(self) -> None:
        """Mark progress within the phase."""
        self.enter(self.last.phase)

    def describe(self, doing: str) -> None:
        """Mark progress within the phase, and describe it."""
        self.doing = doing
        self.tick()

    def stopping_s(self) -> float:
        """Return the seconds that a run needs before a deadline to finish a step and save."""
        save_s = self.longest_s.get(SAVE, UNSEEN_SAVE_S)
        return LEADS * (save_s + self.longest_s.get(STEP, 0.0))
