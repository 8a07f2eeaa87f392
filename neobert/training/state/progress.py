"""Progress of a run: what a checkpoint holds besides tensors, for a bit-exact resume."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neobert.data.batches.windows import Cursor

Row = dict[str, Any]


class LossWindow:
    """The loss since the last line of metrics, summed on the device so that no step waits for it."""

    def __init__(self, device: torch.device, loss_sum: float = 0.0, num_targets: int = 0) -> None:
        self.loss_sum = torch.tensor(loss_sum, dtype=torch.float64, device=device)
        self.num_targets = num_targets

    def add(self, loss_sum: Tensor, num_targets: int) -> None:
        """Add a step's loss, summed over its targets, and their number."""
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
    """Progress of a run.

    Attributes:
        step: optimizer steps done.
        cursor: position in the data, after the last microbatch of that step on all ranks.
        tokens_total: real tokens trained on, over all ranks.
        loss: the loss since the last line of metrics.
        row: the line of metrics of this step while hooks still add to it; None when it is written.
        trained_s: time spent in earlier sessions.
        resumed_step: step that this session started from; None for a fresh start.
        saved_step: step of the last checkpoint, or None.
    """

    loss: LossWindow
    cursor: Cursor = field(default_factory=Cursor)
    step: int = 0
    tokens_total: int = 0
    row: Row | None = field(default_factory=lambda: {"step": 0})
    trained_s: float = 0.0
    resumed_step: int | None = None
    saved_step: int | None = None

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint of this step."""
        return self.saved_step == self.step

    def advance(self, cursor: Cursor, num_tokens: int) -> None:
        """Count a completed step, and open its line of metrics."""
        self.step += 1
        self.cursor = cursor
        self.tokens_total += num_tokens
        self.row = {"step": self.step}
