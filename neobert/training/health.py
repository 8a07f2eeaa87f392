"""What wears a run down without stopping it: said in the log as it comes, counted in the heartbeat."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from statistics import median

from neobert.training.memory import allocator_fields, gpu_bytes
from neobert.training.trainer import Trainer

log = logging.getLogger(__name__)

SLOW, CREEP, RETRIES, NO_GRADIENT = (
    "slow_tokens", "reserved_memory_creep", "allocator_retries", "zero_gradient"
)  # fmt: skip
# A line is compared with the lines before it; the first ones of a session still warm up.
SETTLING_LINES = 2
REFERENCE_LINES = 20
SLOW_SHARE = 0.8
SLOW_LINES = 3
CREEP_SHARE = 1.1


class HealthWatch:
    """A hook for logging steps, behind the one that reads the meters."""

    def __init__(self) -> None:
        self._num_lines = 0
        self._speeds: deque[float] = deque(maxlen=REFERENCE_LINES)
        self._num_slow = 0
        self._reserved: int | None = None
        self._retries = 0

    def __call__(self, trainer: Trainer) -> None:
        """Warn, and add to `trainer.warnings`, which the heartbeat repeats."""
        for name, words in self.judge(trainer):
            trainer.warnings[name] += 1
            log.warning("step %d: %s", trainer.progress.step, words)

    def judge(self, trainer: Trainer) -> Iterator[tuple[str, str]]:
        """Yield what this line shows, by name and in words."""
        self._num_lines += 1
        reading, device = trainer.reading, trainer.world.device
        if reading.grad_norm == 0:
            yield NO_GRADIENT, "the gradient is zero: nothing is learned"
        yield from self._judge_retries(allocator_fields(device)["memory/alloc_retries"])
        if self._num_lines > SETTLING_LINES:
            yield from self._judge_speed(reading.tokens_per_second)
            yield from self._judge_reserved(gpu_bytes(device)[1])

    def _judge_speed(self, speed: float | None) -> Iterator[tuple[str, str]]:
        if speed is None:
            return
        usual = median(self._speeds) if self._speeds else speed
        self._num_slow = self._num_slow + 1 if speed < SLOW_SHARE * usual else 0
        if self._num_slow == 0:
            self._speeds.append(speed)
        if self._num_slow == SLOW_LINES:
            yield SLOW, f"{speed:,.0f} tokens/s for {SLOW_LINES} lines, after {usual:,.0f}"

    def _judge_reserved(self, reserved: int | None) -> Iterator[tuple[str, str]]:
        if reserved is None:
            return
        if self._reserved is None:
            self._reserved = reserved
        if reserved > CREEP_SHARE * self._reserved:
            yield CREEP, f"reserved memory rose from {self._reserved >> 20:,} to {reserved >> 20:,} MiB"
            self._reserved = reserved

    def _judge_retries(self, retries: int | float | None) -> Iterator[tuple[str, str]]:
        if retries is not None and retries > self._retries:
            count, self._retries = int(retries) - self._retries, int(retries)
            yield RETRIES, f"the allocator ran out of memory and freed its cache {count} times"
