"""Loss, accuracy and perplexity of predicted tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neobert.objectives.tokens import Score
from neobert.parallel import World
from neobert.tasks.metric import LOSSES_BY_POSITION, RANGES, is_reported_at_length
from neobert.training.loop.task import Batch


class TokenMetrics:
    """Sums over the targets of an evaluation, kept on the device to avoid synchronization."""

    def __init__(self, device: torch.device, row: int = 0) -> None:
        """Start at zero. `row`: tokens of the longest row, for the loss by position."""
        self._row = row
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._by_position: Tensor | None = None
        self._num_targets = 0

    def add(self, score: Score, batch: Batch) -> None:
        """Add the sums of a microbatch."""
        self._sums += torch.stack([score.loss_sum, score.num_correct])
        self._num_targets += batch.num_targets
        if score.by_position is not None:
            before = 0 if self._by_position is None else self._by_position
            self._by_position = before + score.by_position

    def values(self, world: World) -> dict[str, float | None]:
        """Return loss, perplexity and accuracy over all ranks, and the loss by position in long rows.

        Each value is None if there are no targets; the perplexity also if it overflows.
        """
        loss_sum, num_correct = world.all_reduce_sum(self._sums).tolist()
        (num_targets,) = world.sum_over_ranks([self._num_targets])
        loss = loss_sum / num_targets if num_targets else None
        return {
            "eval/loss": loss,
            "eval/perplexity": perplexity(loss),
            "eval/accuracy": int(num_correct) / num_targets if num_targets else None,
            **self._losses_by_position(world),
        }

    def _losses_by_position(self, world: World) -> dict[str, float | None]:
        if self._row <= RANGES[1]:
            return {}
        sums = torch.zeros(2, len(RANGES), dtype=torch.float64, device=self._sums.device)
        own = sums if self._by_position is None else self._by_position
        loss_sums, counts = world.all_reduce_sum(own).tolist()
        means = [loss / count if count else None for loss, count in zip(loss_sums, counts, strict=True)]
        named = zip(LOSSES_BY_POSITION, means, strict=True)
        return {metric.name: mean for metric, mean in named if is_reported_at_length(metric, self._row)}


def perplexity(loss: float | None) -> float | None:
    """Return exp(loss), or None if the loss is missing or not finite, or the result overflows a float64."""
    try:
        return None if loss is None or not math.isfinite(loss) else math.exp(loss)
    except OverflowError:
        return None
