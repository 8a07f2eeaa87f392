"""What a stall is: no rank of a run gets any further for longer than its phase may take.

Progress is what counts, not a sign of life: a rank that hangs in a collective goes on writing heartbeats.
Pure: it is told what the heartbeats say and what time it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.rundir.records import Record
from neobert.config.schema import WatchdogConfig
from neobert.runfiles.phases import COLLECTIVE, COMPILE, DATA_WAIT, EVALUATION, SAVE, START, STEP

PATIENCE = 10
# A rank is silent that has missed so many heartbeats: it cannot even run the thread that writes them.
MISSED_BEATS = 3
LONGEST_BLINK_S = 5.0


class Attention:
    """A clock that stands still while this process does, in seconds.

    A job that a scheduler suspends, or a machine that sleeps, has stood still as a whole: nobody was there
    to see whether a rank got any further.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at_s = clock()
        self._seen_s = 0.0

    def __call__(self) -> float:
        """Return the time that was seen to pass. Ask more often than every `LONGEST_BLINK_S`."""
        now_s = self._clock()
        self._seen_s += min(now_s - self._asked_at_s, LONGEST_BLINK_S)
        self._asked_at_s = now_s
        return self._seen_s


@dataclass(frozen=True, slots=True)
class Stall:
    """A run that stands still.

    Attributes:
        rank: the one that holds it up.
        phase: where that rank said it is.
        step: optimizer steps done, as far as it has said.
        silence_s: since that rank last got any further.
        limit_s: what its phase was given.
        is_mute: whether it writes no heartbeats either: it is stopped, or a call holds the interpreter.
    """

    rank: int
    phase: str
    step: int | None
    silence_s: float
    limit_s: float
    is_mute: bool

    def __str__(self) -> str:
        """In words."""
        where = "before its first step" if self.step is None else f"after step {self.step}"
        times = f"{self.silence_s:.1f} s, {self.limit_s:.1f} s are allowed"
        if self.is_mute:  # its phase is what it last said, and may have been left since
            said = f"and writes no heartbeats either; the last one came from {self.phase}"
            return f"rank {self.rank} stands still {where} for {times}, {said}"
        return f"rank {self.rank} stands still in {self.phase} {where} for {times}"


@dataclass(slots=True)
class Standing:
    """What is known of a rank: the newest heartbeat, and when it last showed progress and life."""

    progressed_at_s: float
    beaten_at_s: float
    beat: Record = field(default_factory=dict)

    def hear(self, beat: Record, now_s: float) -> None:
        """Take a heartbeat that is newer than any before."""
        if _progress(beat) != _progress(self.beat):
            self.progressed_at_s = now_s
        self.beat, self.beaten_at_s = beat, now_s


class Watchdog:
    """Looks at the newest heartbeats of all ranks again and again. Times are seconds on any one clock."""

    def __init__(self, limits: WatchdogConfig, beats: Mapping[int, Record], now_s: float) -> None:
        """`beats` are those from before the session: they say nothing of it."""
        self._limits = limits
        self._before = {rank: beat.get("seq") for rank, beat in beats.items()}
        self.ranks = {rank: Standing(now_s, now_s) for rank in beats}

    def look(self, beats: Mapping[int, Record], now_s: float) -> Stall | None:
        """Tell whether the run stands still: every rank is over its limit, so none will free the others."""
        for rank, beat in beats.items():
            known = self.ranks[rank]
            seq = beat.get("seq")
            if seq is not None and seq not in (known.beat.get("seq"), self._before[rank]):
                known.hear(beat, now_s)
        if all(now_s - known.progressed_at_s > self.limit_s(known.beat) for known in self.ranks.values()):
            return self._blame(now_s)
        return None

    def limit_s(self, beat: Record) -> float:
        """How long a rank may be silent where it is, by what the run has shown and what the config allows.

        A heartbeat may be as old as their interval.
        """
        phase = str(beat.get("phase", START))
        limits = self._limits
        most_s = {
            COMPILE: limits.compile_limit_s,
            STEP: limits.step_limit_s,
            DATA_WAIT: limits.data_wait_limit_s,
            COLLECTIVE: limits.data_wait_limit_s,
            EVALUATION: limits.evaluation_limit_s,
            SAVE: limits.save_limit_s,
        }.get(phase, limits.start_limit_s)
        longest_s = (beat.get("phase_longest_s") or {}).get(phase)
        if longest_s is not None:
            most_s = min(most_s, max(limits.learned_floor_s, PATIENCE * longest_s))
        return most_s + limits.heartbeat_interval_s

    def _blame(self, now_s: float) -> Stall:
        """Name the rank that is mute where one is, else the one that got least far or halted first."""
        rank, known = min(
            self.ranks.items(),
            key=lambda each: (not self._is_mute(each[1], now_s), _how_far(each[1].beat), each[0]),
        )
        return Stall(
            rank=rank,
            phase=str(known.beat.get("phase", START)),
            step=known.beat.get("step"),
            silence_s=now_s - known.progressed_at_s,
            limit_s=self.limit_s(known.beat),
            is_mute=self._is_mute(known, now_s),
        )

    def _is_mute(self, known: Standing, now_s: float) -> bool:
        return now_s - known.beaten_at_s > MISSED_BEATS * self._limits.heartbeat_interval_s


def _progress(beat: Record) -> tuple[object, ...]:
    return tuple(beat.get(name) for name in ("phase", "last_progress_step", "last_progress_ts_utc"))


def _how_far(beat: Record) -> tuple[int, str]:
    step = beat.get("last_progress_step")
    return (-1 if step is None else step, str(beat.get("last_progress_ts_utc", "")))
