"""Training state: `Progress`, which checkpoints store, and the state of the current session."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neobert.data.batches.windows import Cursor
from neobert.errors import ProjectError

log = logging.getLogger(__name__)

Row = dict[str, Any]


class LossWindow:
    """Sum of the loss since the last metrics line, kept on the device to avoid a wait in every step."""

    def __init__(self, device: torch.device, loss_sum: float = 0.0, num_targets: int = 0) -> None:
        self.loss_sum = torch.tensor(loss_sum, dtype=torch.float64, device=device)
        self.num_targets = num_targets

    def add(self, loss_sum: Tensor, num_targets: int) -> None:
        """Add a step's loss (summed over targets) and its number of targets."""
        self.loss_sum += loss_sum
        self.num_targets += num_targets

    def take(self) -> float:
        """Return the mean loss per target in nats (NaN without targets) and reset. Waits for the device."""
        mean = self.loss_sum.item() / self.num_targets if self.num_targets else math.nan
        self.loss_sum.zero_()
        self.num_targets = 0
        return mean


@dataclass(slots=True)
class Progress:
    """Progress of a run, which checkpoints store.

    Attributes:
        step: optimizer steps done.
        cursor: position in the data, after the last microbatch of that step on all ranks.
        tokens_total: tokens trained on, without padding, over all ranks.
        loss: the loss since the last metrics line.
        row: metrics of this step while hooks still add to them; None once they are written.
        trained_s: seconds spent in earlier sessions.
        resumed_step: step that this session started from; None for a fresh start.
        saved_step: step of the last checkpoint; None before the first.
        first_step: step at which the run begins; above 0 if it continues another run's checkpoint.
        first_tokens: `tokens_total` at that step.
    """

    loss: LossWindow
    cursor: Cursor = field(default_factory=Cursor)
    step: int = 0
    tokens_total: int = 0
    row: Row | None = field(default_factory=lambda: {"step": 0})
    trained_s: float = 0.0
    resumed_step: int | None = None
    saved_step: int | None = None
    first_step: int = 0
    first_tokens: int = 0

    @property
    def is_saved(self) -> bool:
        """Return whether this step has a checkpoint."""
        return self.saved_step == self.step

    @property
    def first_open_step(self) -> int:
        """Return the step of the next metrics line: the current step if its line is not written yet."""
        return self.step + (self.row is None)

    def advance(self, cursor: Cursor, num_tokens: int) -> None:
        """Record a completed step, and start its metrics line."""
        self.step += 1
        self.cursor = cursor
        self.tokens_total += num_tokens
        self.row = {"step": self.step}


@dataclass(slots=True)
class LastMetrics:
    """Values of the last metrics line, which every heartbeat repeats; None before the first line.

    Attributes:
        nsa: metrics of native sparse attention without their prefix; None for another model.
    """

    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    data_wait_ms: float | None = None
    data_wait_p50_ms: float | None = None
    data_wait_p95_ms: float | None = None
    step_time_s: float | None = None
    smoothed_step_time_s: float | None = None
    nsa: Mapping[str, float] | None = None


@dataclass(slots=True, kw_only=True)
class TrainState:
    """State of one session. Of these fields, checkpoints store only `progress`.

    Attributes:
        flops: floating-point operations of this session, over all ranks.
        recompiles: functions compiled after warm-up; None without torch_compile.
        kernel_fallbacks: transformer blocks that used another attention kernel than the chosen one, summed
            over metrics lines.
        read_retries: retried reads of a text stream; None if nothing is streamed.
        failure: error to raise after the last step is saved; None if the run does not end by an error.
        evaluations: number of evaluations of this session.
        evaluation_s: seconds of the last evaluation; 0 before the first.
        evaluation_parts: microbatches of the last evaluation on this rank; None before the first.
        warnings: number of warnings in this session, by warning name.
        warning_messages: latest message of each warning name.
        grad_norm: gradient norm of the last step, before clipping, on the device.
        learning_rate: learning rate of the last step.
        saved_at_s: monotonic time of the last checkpoint's snapshot, or of the start of this session.
    """

    progress: Progress
    flops: int = 0
    recompiles: int | None = None
    kernel_fallbacks: int = 0
    read_retries: int | None = None
    failure: ProjectError | None = None
    evaluations: int = 0
    evaluation_s: float = 0.0
    evaluation_parts: int | None = None
    warnings: Counter[str] = field(default_factory=Counter)
    warning_messages: dict[str, str] = field(default_factory=dict)
    grad_norm: Tensor | None = None
    learning_rate: float = 0.0
    last_metrics: LastMetrics = field(default_factory=LastMetrics)
    started_at_s: float = field(default_factory=time.monotonic)
    saved_at_s: float = field(default_factory=time.monotonic)

    def warn(self, name: str, message: str) -> None:
        """Log and count a warning; the heartbeat repeats the latest message of each name."""
        self.warnings[name] += 1
        self.warning_messages[name] = f"step {self.progress.step}: {message}"
        log.warning("%s", self.warning_messages[name])

    @property
    def trained_s(self) -> float:
        """Return the seconds of training in all sessions, including this one."""
        return self.progress.trained_s + time.monotonic() - self.started_at_s
