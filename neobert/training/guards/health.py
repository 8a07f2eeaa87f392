"""Warnings that do not end a run: throughput, memory, zero gradient, loss plateau."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean, median, variance
from typing import Any

from neobert.config.schedules import microbatches_at
from neobert.metric_names import PACE, TRAIN_LOSS
from neobert.plan.pieces import piece_length_at
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.memory import gpu_bytes

SLOW, FAST, CREEP, RETRIES, NO_GRADIENT = (
    "slow_tokens", "fast_tokens", "reserved_memory_creep", "allocator_retries", "zero_gradient"
)  # fmt: skip
# A line is compared with the lines before it; the first ones of a session still warm up.
SETTLING_LINES = 2
REFERENCE_LINES = 20
# On a busy machine, single lines leave the band; several in a row on one side are a change of pace.
SPEED_BAND = 0.1
SUSTAINED_LINES = 5
CREEP_SHARE = 1.1
PLATEAU = "loss_plateau"
# Loss falls as tokens ** -0.095 (Kaplan et al. 2020, arXiv:2001.08361). A tenth of that fall is a plateau.
EXPONENT = 0.0095
# The same fall takes four times the steps at four times the age, so the window grows with the run.
MIN_STEPS = 1000
SHARE_OF_STEPS = 0.25
# In each half, so that the noise of its mean can be estimated from the spread.
MIN_LINES = 8
STANDARD_ERRORS = 2.0


class HealthWatch:
    """Hook for logging steps that warns about throughput, memory growth and a zero gradient."""

    def __init__(self) -> None:
        self._num_lines = 0
        self._kind_of_step: tuple[int, int | None] = (0, None)
        self._speeds: deque[float] = deque(maxlen=REFERENCE_LINES)
        self._side, self._outside = "", list[float]()
        self._reserved: int | None = None
        self._evaluations_before: int | None = None
        self._retries = 0

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Log a warning for each problem in the step's metrics."""
        step, config = report.step - 1, trainer.config
        pieces = piece_length_at(step, config, trainer.max_steps)
        if (kind_of_step := (microbatches_at(step, config.trainer), pieces)) != self._kind_of_step:
            # Microbatches or pieces changed since the last line, and with them the usual speed.
            self._kind_of_step = kind_of_step
            self._speeds.clear()
            self._side, self._outside = "", []
        reserved_bytes = gpu_bytes(trainer.world.device)[1]
        for name, message in self.judge(report.metrics, reserved_bytes, trainer.state.evaluations):
            trainer.state.warn(name, message)

    def judge(
        self, metrics: Mapping[str, Any], reserved_bytes: int | None, evaluations: int
    ) -> Iterator[tuple[str, str]]:
        """Yield name and message of each warning about a line of metrics.

        `reserved_bytes` is None without a GPU. `evaluations`: number of evaluations of this session.
        """
        self._num_lines += 1
        if metrics.get("train/grad_norm") == 0:
            yield NO_GRADIENT, "the gradient norm is 0: no weight changes"
        yield from self._judge_retries(metrics.get("memory/alloc_retries"))
        if self._num_lines > SETTLING_LINES:
            yield from self._judge_speed(metrics.get(PACE))
            yield from self._judge_reserved(reserved_bytes, evaluations)

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
            yield side, _describe_change(usual, median(self._outside))
            self._speeds = deque(self._outside, REFERENCE_LINES)  # the pace from here on

    def _judge_reserved(self, reserved: int | None, evaluations: int) -> Iterator[tuple[str, str]]:
        if reserved is None:
            return
        # The allocator keeps the memory of an evaluation; that of one before the first step may be in use by
        # CUDA graphs since. The first evaluation after the baseline gives a new one.
        if self._reserved is None:
            self._reserved, self._evaluations_before = reserved, evaluations
        elif self._evaluations_before is not None and evaluations > self._evaluations_before:
            self._reserved, self._evaluations_before = reserved, None
        if reserved > CREEP_SHARE * self._reserved:
            before, after = self._reserved >> 20, reserved >> 20
            yield CREEP, f"reserved GPU memory rose from {before:,} to {after:,} MiB"
            self._reserved = reserved

    def _judge_retries(self, retries: int | float | None) -> Iterator[tuple[str, str]]:
        if retries is not None and retries > self._retries:
            count, self._retries = int(retries) - self._retries, int(retries)
            times = f"{count} time{'s' if count != 1 else ''}"
            yield RETRIES, f"the CUDA allocator ran out of memory and freed its cache {times}"


def _describe_change(usual: float, now: float) -> str:
    verb = "rose" if now > usual else "fell"
    return (
        f"throughput {verb} {abs(now / usual - 1):.0%}, from {usual:,.0f} to {now:,.0f} tokens/s "
        f"(last {SUSTAINED_LINES} log lines)"
    )


class PlateauWatch:
    """Hook for logging steps that warns about a loss plateau.

    It compares the mean loss of the two halves of a window of 1,000 steps, a quarter of the steps done, or 16
    metrics lines, whichever is longest. The window is a plateau if the later mean exceeds a decrease as
    steps ** -0.0095 by more than two standard errors.
    """

    def __init__(self, logging_steps: int) -> None:
        self._least_steps = max(MIN_STEPS, 2 * MIN_LINES * logging_steps)
        self._first_step: int | None = None
        self._halves: tuple[list[float], list[float]] = [], []

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Warn at the end of a window with a plateau."""
        message = self.judge(report.step, report.metrics.get(TRAIN_LOSS))
        if message:
            trainer.state.warn(PLATEAU, message)

    def judge(self, step: int, loss: float | None) -> str:
        """Add a loss, or None for a line without targets; return the warning, or an empty string."""
        if self._first_step is None:
            self._first_step = step
        length = max(self._least_steps, int(SHARE_OF_STEPS * self._first_step))
        if loss is not None:
            self._halves[2 * (step - self._first_step) > length].append(loss)
        if step - self._first_step < length:
            return ""
        message = self._plateau_message(self._first_step, step)
        self._first_step, self._halves = step, ([], [])
        return message

    def _plateau_message(self, first_step: int, last_step: int) -> str:
        if min(map(len, self._halves)) < 2:
            return ""  # the noise cannot be estimated
        earlier, later = map(fmean, self._halves)
        quarter = (last_step - first_step) / 4
        fallen = ((first_step + 3 * quarter) / (first_step + quarter)) ** -EXPONENT
        early_noise, late_noise = (variance(half) / len(half) for half in self._halves)
        if later - fallen * earlier <= STANDARD_ERRORS * math.sqrt(fallen**2 * early_noise + late_noise):
            return ""
        return (
            f"loss plateau over steps {first_step:,} to {last_step:,}: mean loss {later:.4f} in the "
            f"later half, {earlier:.4f} in the earlier (limit {fallen * earlier:.4f})"
        )
