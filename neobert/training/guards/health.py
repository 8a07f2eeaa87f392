"""Health warnings: changes of speed, memory growth, allocator retries, a gradient of zero."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from neobert.training.guards.warnings import warn
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.memory import gpu_bytes

SLOW, FAST, CREEP, RETRIES, NO_GRADIENT = (
    "slow_tokens", "fast_tokens", "reserved_memory_creep", "allocator_retries", "zero_gradient"
)  # fmt: skip
# A line is compared with the lines before it; the first ones of a session still warm up.
SETTLING_LINES = 2
REFERENCE_LINES = 20
# Single lines of a busy machine leave the band; several in a row on one side of it are another pace.
SPEED_BAND = 0.1
SUSTAINED_LINES = 5
CREEP_SHARE = 1.1


class HealthWatch:
    """A hook for logging steps: compares a line with those before it."""

    def __init__(self) -> None:
        self._num_lines = 0
        self._speeds: deque[float] = deque(maxlen=REFERENCE_LINES)
        self._side, self._outside = "", list[float]()
        self._reserved: int | None = None
        self._retries = 0

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Warn of what the line shows."""
        reserved_bytes = gpu_bytes(trainer.world.device)[1]
        for name, message in self.judge(report.metrics, reserved_bytes):
            warn(trainer, name, message)

    def judge(self, metrics: Mapping[str, Any], reserved_bytes: int | None) -> Iterator[tuple[str, str]]:
        """Yield the name and the message of each warning."""
        self._num_lines += 1
        if metrics.get("train/grad_norm") == 0:
            yield NO_GRADIENT, "the gradient norm is 0: the weights do not change"
        yield from self._judge_retries(metrics.get("memory/alloc_retries"))
        if self._num_lines > SETTLING_LINES:
            yield from self._judge_speed(metrics.get("train/tokens_per_sec"))
            yield from self._judge_reserved(reserved_bytes)

    def _judge_speed(self, speed: float | None) -> Iterator[tuple[str, str]]:
        if speed is None:
            return
        usual = median(self._speeds) if len(self._speeds) >= SUSTAINED_LINES else speed
        side = SLOW if speed < (1 - SPEED_BAND) * usual else FAST if speed > (1 + SPEED_BAND) * usual else ""
        self._outside = [*self._outside, speed] if side and side == self._side else [speed]
        self._side = side
        if not side:
            self._speeds.append(speed)
        elif len(self._outside) == SUSTAINED_LINES:
            yield side, _change(usual, median(self._outside))
            self._speeds = deque(self._outside, REFERENCE_LINES)  # the pace from here on

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


def _change(usual: float, now: float) -> str:
    return f"{now:,.0f} tokens/s for {SUSTAINED_LINES} lines, {now / usual - 1:+.0%} from {usual:,.0f} before"
