"""State of a training run: what its steps change, apart from the services that they use."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from neobert.errors import ProjectError
from neobert.training.state.progress import Progress


@dataclass(slots=True)
class LastMetrics:
    """Values of the last line of metrics, which the heartbeat repeats; None before the first line."""

    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    data_wait_ms: float | None = None
    data_wait_p50_ms: float | None = None
    data_wait_p95_ms: float | None = None
    step_time_s: float | None = None


@dataclass(slots=True, kw_only=True)
class TrainState:
    """State of one session. Only `progress` outlives it: a checkpoint holds that and the tensors.

    Attributes:
        flops: floating-point operations of this session, over all ranks.
        recompiles: functions compiled after warm-up; None if nothing is compiled.
        kernel_fallbacks: blocks seen on another attention kernel than the resolved one, summed over lines.
        read_retries: retried reads of a text stream; None if nothing is streamed.
        failure: error that ends the run at this step, raised after the step is saved; None for any other end.
        evaluation_s: duration of the last evaluation; 0 before the first.
        warnings: number of warnings of this session, by name.
        warning_messages: newest message of each name.
        grad_norm: gradient norm of the last step, before clipping, on the device.
        learning_rate: rate of the last step.
        saved_at_s: monotonic time of the last checkpoint's copy, or of the start of this session.
    """

    progress: Progress
    flops: int = 0
    recompiles: int | None = None
    kernel_fallbacks: int = 0
    read_retries: int | None = None
    failure: ProjectError | None = None
    evaluation_s: float = 0.0
    warnings: Counter[str] = field(default_factory=Counter)
    warning_messages: dict[str, str] = field(default_factory=dict)
    grad_norm: Tensor | None = None
    learning_rate: float = 0.0
    last_metrics: LastMetrics = field(default_factory=LastMetrics)
    started_at_s: float = field(default_factory=time.monotonic)
    saved_at_s: float = field(default_factory=time.monotonic)

    @property
    def trained_s(self) -> float:
        """Return the time spent in all sessions."""
        return self.progress.trained_s + time.monotonic() - self.started_at_s
