"""Hang detection: no rank of a run makes progress for longer than the limit of its phase.

A heartbeat alone is not progress: a rank that hangs in a collective still writes heartbeats. This module does
no I/O: heartbeats and the time are arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.rundir.records import Record
from neobert.config.schema import WatchdogConfig
from neobert.runfiles.phases import COLLECTIVE, COMPILE, DATA_WAIT, EVALUATION, SAVE, START, STEP

PATIENCE = 10
# A rank that missed this many heartbeats is silent: it cannot even run the thread that writes them.
MISSED_BEATS = 3
MAX_CALL_GAP_S = 5.0


class AwakeClock:
    """Clock that stops while this process is suspended, in seconds.

    If a scheduler suspends a job, or a machine sleeps, all of its processes stop. That time must not count as
    a hang of a rank.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at_s = clock()
        self._seen_s = 0.0

    def __call__(self) -> float:
        """Return the elapsed time while awake. Must be called more often than every `MAX_CALL_GAP_S`."""
        now_s = self._clock()
        self._seen_s += min(now_s - self._read_at_s, MAX_CALL_GAP_S)
        self._read_at_s = now_s
        return self._seen_s


@dataclass(frozen=True, slots=True)
class Stall:
    """A run that hangs.

    Attributes:
        rank: the rank that blocks the others.
        phase: the phase that this rank reported.
        step: completed optimizer steps, as reported.
        silence_s: time since this rank's last progress.
        limit_s: limit of its phase.
        is_silent: whether it writes no heartbeats either: it is stopped, or a call holds the GIL.
    """

    rank: int
    phase: str
    step: int | None
    silence_s: float
    limit_s: float
    is_silent: bool

    def __str__(self) -> str:
        """Describe the hang with rank, phase, duration and limit."""
        place = "before its first step" if self.step is None else f"after step {self.step}"
        times = f"{self.silence_s:.1f} s (limit {self.limit_s:.1f} s)"
        if self.is_silent:  # the phase is the last reported one, which the rank may have left since
            silence = f"and wrote no heartbeats; the last one was in {self.phase}"
            return f"rank {self.rank} made no progress {place} for {times}, {silence}"
        return f"rank {self.rank} made no progress in {self.phase} {place} for {times}"


@dataclass(slots=True)
class RankState:
    """A rank's newest heartbeat, and when it last made progress and last reported."""

    progressed_at_s: float
    beaten_at_s: float
    beat: Record = field(default_factory=dict)

    def update(self, beat: Record, now_s: float) -> None:
        """Record a newer heartbeat, and `now_s` as the time of progress if the heartbeat reports any."""
        if _progress_marker(beat) != _progress_marker(self.beat):
            self.progressed_at_s = now_s
        self.beat, self.beaten_at_s = beat, now_s


class Watchdog:
    """Hang detector, called repeatedly with the newest heartbeats. All times are in seconds of one clock."""

    def __init__(self, limits: WatchdogConfig, beats: Mapping[int, Record], now_s: float) -> None:
        """Start with `beats`, the heartbeats from before the session, which must not count as progress."""
        self._limits = limits
        self._before = {rank: beat.get("seq") for rank, beat in beats.items()}
        self.ranks = {rank: RankState(now_s, now_s) for rank in beats}

    def find_stall(self, beats: Mapping[int, Record], now_s: float) -> Stall | None:
        """Return a Stall if every rank has exceeded the limit of its phase, otherwise None.

        While any rank makes progress, the others may be waiting for it.
        """
        for rank, beat in beats.items():
            known = self.ranks[rank]
            seq = beat.get("seq")
            if seq is not None and seq not in (known.beat.get("seq"), self._before[rank]):
                known.update(beat, now_s)
        # A rank may wait for another, e.g. for the one that prepares the data, so all must exceed their
        # limit.
        if all(now_s - known.progressed_at_s > self.limit_s(known.beat) for known in self.ranks.values()):
            return self._find_blocking_rank(now_s)
        return None

    def limit_s(self, beat: Record) -> float:
        """Return the time limit of a phase in seconds: from the config, or a lower one learned in the run.

        Includes one heartbeat interval, because the newest heartbeat may be that old.
        """
        phase = str(beat.get("phase", START))
        limits = self._limits
        max_s = {
            COMPILE: limits.compile_limit_s,
            STEP: limits.step_limit_s,
            DATA_WAIT: limits.data_wait_limit_s,
            COLLECTIVE: limits.data_wait_limit_s,
            EVALUATION: limits.evaluation_limit_s,
            SAVE: limits.save_limit_s,
        }.get(phase, limits.start_limit_s)
        longest_s = (beat.get("phase_longest_s") or {}).get(phase)
        if longest_s is not None:
            # A multiple of the longest duration so far detects hangs much earlier than the configured limit.
            max_s = min(max_s, max(limits.learned_floor_s, PATIENCE * longest_s))
        return max_s + limits.heartbeat_interval_s

    def _find_blocking_rank(self, now_s: float) -> Stall:
        """Return the Stall of the rank that blocks the others.

        This is a rank without recent heartbeats, otherwise the rank at the lowest step or, at the same step,
        the one with the oldest progress.
        """
        # A rank that cannot even write heartbeats is stopped or holds the GIL; the others only wait for it.
        rank, known = min(
            self.ranks.items(),
            key=lambda each: (
                not self._has_no_heartbeat(each[1], now_s),
                _progress_order(each[1].beat),
                each[0],
            ),
        )
        return Stall(
            rank=rank,
            phase=str(known.beat.get("phase", START)),
            step=known.beat.get("step"),
            silence_s=now_s - known.progressed_at_s,
            limit_s=self.limit_s(known.beat),
            is_silent=self._has_no_heartbeat(known, now_s),
        )

    def _has_no_heartbeat(self, known: RankState, now_s: float) -> bool:
        return now_s - known.beaten_at_s > MISSED_BEATS * self._limits.heartbeat_interval_s


def _progress_marker(beat: Record) -> tuple[object, ...]:
    return tuple(beat.get(name) for name in ("phase", "last_progress_step", "last_progress_ts_utc"))


def _progress_order(beat: Record) -> tuple[int, str]:
    step = beat.get("last_progress_step")
    return (-1 if step is None else step, str(beat.get("last_progress_ts_utc", "")))
