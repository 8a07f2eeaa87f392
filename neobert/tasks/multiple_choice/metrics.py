"""Loss and accuracy of multiple choice over a whole split."""

from __future__ import annotations

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.objectives.labelled import Predictions
from neobert.parallel import World


class ChoiceMetrics:
    """Sums over the rows of an evaluation, kept on the device to avoid synchronization."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._num_rows = 0

    def add(self, score: Predictions, batch: Microbatch) -> None:
        """Add the sums of a microbatch."""
        is_right = (score.logits.argmax(1) == score.labels) & (score.labels != IGNORED)
        self._sums += torch.stack([score.loss_sum, is_right.sum()])
        self._num_rows += batch.num_targets

    def values(self, world: World) -> dict[str, float | None]:
        """Return mean loss and accuracy over all ranks; both are None if there are no rows."""
        loss_sum, num_right = world.all_reduce_sum(self._sums).tolist()
        (num_rows,) = world.sum_over_ranks([self._num_rows])
        values = {"eval/loss": loss_sum, "eval/accuracy": num_right}
        return {name: value / num_rows if num_rows else None for name, value in values.items()}
