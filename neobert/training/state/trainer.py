"""State of a run in memory, and the services that its steps use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from neobert.config.schema import RunConfig
from neobert.optim import WeightAverage
from neobert.optim.qk_clip import QKClip
from neobert.parallel import World
from neobert.runfiles.phases import PhaseTracker
from neobert.runfiles.run_dir import CHECKPOINTS
from neobert.training.guards.loss_guard import FiniteGuard
from neobert.training.loop.signals import Signals
from neobert.training.loop.task import Batches, Task
from neobert.training.state.train_state import Progress, TrainState
from neobert.training.telemetry.stopwatch import Stopwatch


@dataclass(slots=True, kw_only=True)
class Trainer:
    """A run in memory: `state`, which its steps change, and the services that they use.

    Attributes:
        max_steps: optimizer steps of the whole run; early stopping lowers it.
        module: the task's objective as returned by `World.prepare`.
        average: average of the weights, which evaluations and exports use; None: they use the weights.
        batches: microbatches of this rank, from the cursor on.
        source: the checkpoint of another run that this one continues; None for most runs.
        source_evaluation: evaluation microbatches of the text of that run; None if they are not evaluated.
        phases: marks of the phase that this process is in, which the heartbeat repeats.
    """

    config: RunConfig
    max_steps: int
    run_dir: Path
    state: TrainState
    world: World
    task: Task
    module: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    batches: Batches
    signals: Signals
    stopwatch: Stopwatch
    guard: FiniteGuard
    qk_clip: QKClip | None = None
    average: WeightAverage | None = None
    source: Mapping[str, Any] | None = None
    source_evaluation: Callable[[], Iterable[Any]] | None = None
    phases: PhaseTracker = field(default_factory=PhaseTracker)

    @property
    def progress(self) -> Progress:
        """Return the part of the state that a checkpoint holds."""
        return self.state.progress

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.run_dir / CHECKPOINTS
