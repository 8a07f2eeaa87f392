"""What a run is made of while it trains."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.optim.qk_clip import QKClip
from neobert.parallel import World
from neobert.runfiles.checkpoint.folders import CHECKPOINTS
from neobert.runfiles.phases import Pulse
from neobert.training.guards.finite import FiniteGuard
from neobert.training.loop.signals import Signals
from neobert.training.loop.task import Batches, Task
from neobert.training.state.progress import Progress
from neobert.training.telemetry.stopwatch import Stopwatch


@dataclass(slots=True)
class Reading:
    """What the last line of metrics said, for the heartbeat to repeat; None until there was one."""

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
class Trainer:
    """A run: its parts, and how far it has come.

    Attributes:
        module: the task's objective as `World.prepare` gave it back.
        batches: the microbatches of this rank, from the cursor on.
        flops: floating-point work of this session, over all ranks.
        recompiles: functions that were compiled after the warm-up; None where nothing is compiled.
        kernel_fallbacks: blocks seen on another attention kernel than the resolved one, added up over lines.
        read_retries: reads of a text stream that failed and were retried; None where nothing is streamed.
        failure: why the run stops at this step, raised once that is saved; None for any other end.
        evaluation_s: how long the last evaluation of this session took; 0 before the first.
        warnings: how often this session has warned of what, by name.
        warning_messages: the newest message of each name.
        pulse: where this process is, for whoever watches it.
        saved_at_s: monotonic time of the last checkpoint, or of the start of this session.
    """

    config: RunConfig
    run_dir: Path
    world: World
    task: Task
    module: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    batches: Batches
    progress: Progress
    signals: Signals
    stopwatch: Stopwatch
    guard: FiniteGuard
    qk_clip: QKClip | None = None
    flops: int = 0
    recompiles: int | None = None
    kernel_fallbacks: int = 0
    read_retries: int | None = None
    failure: ProjectError | None = None
    evaluation_s: float = 0.0
    warnings: Counter[str] = field(default_factory=Counter)
    warning_messages: dict[str, str] = field(default_factory=dict)
    pulse: Pulse = field(default_factory=Pulse)
    last_grad_norm: Any = None
    last_learning_rate: float = 0.0
    reading: Reading = field(default_factory=Reading)
    started_at_s: float = field(default_factory=time.monotonic)
    saved_at_s: float = field(default_factory=time.monotonic)

    @property
    def max_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.config.trainer.max_steps

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are kept."""
        return self.run_dir / CHECKPOINTS

    def mark_saved(self, at_s: float) -> None:
        """Count what is at risk from the moment on at which the saved state was copied."""
        self.saved_at_s = at_s

    @property
    def trained_s(self) -> float:
        """Time spent in all sessions."""
        return self.progress.trained_s + time.monotonic() - self.started_at_s
