"""The trainer: state and components of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from neobert.config.schema import RunConfig
from neobert.optim.qk_clip import QKClip
from neobert.parallel import World
from neobert.runfiles.phases import PhaseTracker
from neobert.runfiles.run_dir import CHECKPOINTS
from neobert.training.guards.loss_guard import FiniteGuard
from neobert.training.loop.signals import Signals
from neobert.training.loop.task import Batches, Task
from neobert.training.state.train_state import Progress, TrainState
from neobert.training.telemetry.stopwatch import Stopwatch

if TYPE_CHECKING:  # it uses this class
    from neobert.plugins.hooks import PluggedHooks


@dataclass(slots=True, kw_only=True)
class Trainer:
    """State and components of a run.

    Attributes:
        max_steps: optimizer steps of the whole run; early stopping lowers it.
        module: the task's objective, wrapped for its parallelism by `World.prepare`.
        batches: microbatches of this rank, from the cursor on.
        source: provenance of the checkpoint of another run that this run continues, or None.
        source_evaluation: returns the evaluation microbatches of the source text; None if not evaluated.
        plugged_hooks: hooks of plug-ins, in the first process.
        phases: tracker of the current phase of this process, for the heartbeat.
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
    plugged_hooks: PluggedHooks
    qk_clip: QKClip | None = None
    source: Mapping[str, Any] | None = None
    source_evaluation: Callable[[], Iterable[Any]] | None = None
    phases: PhaseTracker = field(default_factory=PhaseTracker)

    @property
    def progress(self) -> Progress:
        """Return the part of the state that checkpoints store."""
        return self.state.progress

    @property
    def checkpoints(self) -> Path:
        """Return the folder RUN_DIR/checkpoints."""
        return self.run_dir / CHECKPOINTS
