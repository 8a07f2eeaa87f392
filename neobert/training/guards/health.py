"""Warnings that do not end a run: speed, memory, gradient, loss plateau, replicas that differ."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from neobert.metric_names import PACE, TRAIN_LOSS
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
PLATEAU = "loss_plateau"
# Loss falls as tokens ** -0.095 (Kaplan et al. 2020, arXiv:2001.08361). A tenth of that fall is a plateau.
EXPONENT = 0.0095
# The same fall takes four times the steps at four times the age, so the stretch grows with the run.
LEAST_STEPS = 1000
SHARE_OF_STEPS = 0.25
# In each half, so that the noise of its mean can be estimated from the spread.
LEAST_LINES = 8
STANDARD_ERRORS = 2.0
DIVERGING = "diverging_replicas"


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
            trainer.state.warn(name, message)

    def judge(self, metrics: Mapping[str, Any], reserved_bytes: int | None) -> Iterator[tuple[str, str]]:
        """Yield the name and the message of each warning."""
        self._num_lines += 1
        if metrics.get("train/grad_norm") == 0:
            yield NO_GRADIENT, "the gradient norm is 0: no weight changes"
        yield from self._judge_retries(metrics.get("memory/alloc_retries"))
        if self._num_lines > SETTLING_LINES:
            yield from self._judge_speed(metrics.get(PACE))
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
    verb = "rose" if now > usual else "fell"
    return (
        f"throughput {verb} {abs(now / usual - 1):.0%}, from {usual:,.0f} to {now:,.0f} tokens/s "
        f"(last {SUSTAINED_LINES} log lines)"
    )


@dataclass(slots=True)
class Mean:
    """A running mean of losses with their spread (Welford)."""

    count: int = 0
    value: float = 0.0
    squares: float = 0.0

    def add(self, loss: float) -> None:
        """Add a loss."""
        self.count += 1
        before = loss - self.value
        self.value += before / self.count
        self.squares += before * (loss - self.value)

    @property
    def variance(self) -> float:
        """Return the squared standard error of the mean, infinite for fewer than two losses."""
        return self.squares / (self.count - 1) / self.count if self.count > 1 else math.inf


class PlateauWatch:
    """A hook for logging steps that compares the halves of a stretch.

    A stretch has 1,000 steps, a quarter of the steps done, or 16 lines, whichever is longest. It is a plateau
    if the mean loss of its later half is above a fall as steps ** -0.0095, by more than two standard errors.
    """

    def __init__(self, logging_steps: int) -> None:
        self._least_steps = max(LEAST_STEPS, 2 * LEAST_LINES * logging_steps)
        self._first_step: int | None = None
        self._halves = Mean(), Mean()

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Warn at the end of a flat stretch."""
        message = self.judge(report.step, report.metrics.get(TRAIN_LOSS))
        if message:
            trainer.state.warn(PLATEAU, message)

    def judge(self, step: int, loss: float | None) -> str:
        """Add a line's loss, None if it had no target; return a message at the end of a flat stretch."""
        if self._first_step is None:
            self._first_step = step
        length = max(self._least_steps, int(SHARE_OF_STEPS * self._first_step))
        if loss is not None:
            self._halves[2 * (step - self._first_step) > length].add(loss)
        if step - self._first_step < length:
            return ""
        message = self._message(self._first_step, step)
        self._first_step, self._halves = step, (Mean(), Mean())
        return message

    def _message(self, first_step: int, last_step: int) -> str:
        earlier, later = self._halves
        quarter = (last_step - first_step) / 4
        fallen = ((first_step + 3 * quarter) / (first_step + quarter)) ** -EXPONENT
        noise = math.sqrt(fallen**2 * earlier.variance + later.variance)
        if later.value - fallen * earlier.value <= STANDARD_ERRORS * noise:
            return ""
        return (
            f"loss plateau over steps {first_step:,} to {last_step:,}: mean loss {later.value:.4f} in the "
            f"later half, {earlier.value:.4f} in the earlier (limit {fallen * earlier.value:.4f})"
        )


def compare_replicas(trainer: Trainer) -> None:
    """Warn of ranks whose weights differ from the others', bit by bit. All ranks call it.

    Gradients are summed before every update, so replicas that were equal stay equal. A flipped bit in
    the memory of one device, or a wrong update, is not visible in the loss, which is a mean over ranks.
    """
    world = trainer.world
    if world.size == 1 or world.is_sharded:
        return
    gathered = world.gather(str(int(checksum(trainer.task.model))).encode())
    if world.is_main and (ranks := differing([int(each) for each in gathered])):
        named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        message = f"DST005 the weights of {named} differ from the others': check the GPU of each for errors"
        trainer.state.warn(DIVERGING, message)


def checksum(module: nn.Module) -> Tensor:
    """Return a position-weighted sum of the bits of all fp32 parameters, which any flipped bit changes."""
    sums = [parameter.detach().view(torch.int32).sum(dtype=torch.int64) for parameter in module.parameters()]
    places = torch.arange(1, len(sums) + 1, device=sums[0].device)
    return (torch.stack(sums) * places).sum()


def differing(sums: Sequence[int]) -> list[int]:
    """Return the ranks that differ from the majority, or all ranks if there is none."""
    usual, count = Counter(sums).most_common(1)[0]
    has_majority = 2 * count > len(sums)
    return [rank for rank, each in enumerate(sums) if each != usual or not has_majority]
