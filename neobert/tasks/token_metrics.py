"""Loss, accuracy and perplexity of predicted tokens."""

from __future__ import annotations

import math

import torch

from neobert.objectives.tokens import Score
from neobert.parallel import World
from neobert.training.loop.task import Batch


class TokenMetrics:
    """Sums over the targets of an evaluation, kept on the device to avoid synchronization."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._num_targets = 0

    def add(self, score: Score, batch: Batch) -> None:
        """Add the sums of a microbatch."""
        self._sums += torch.stack([score.loss_sum, score.num_correct])
        self._num_targets += batch.num_targets

    def values(self, world: World) -> dict[str, float | None]:
        """Return the means over all ranks; all are None without targets."""
        loss_sum, num_correct = world.add_up(self._sums).tolist()
        (num_targets,) = world.sum_over_ranks([self._num_targets])
        loss = loss_sum / num_targets if num_targets else None
        return {
            "eval/loss": loss,
            "eval/perplexity": perplexity(loss),
            "eval/accuracy": int(num_correct) / num_targets if num_targets else None,
        }


def perplexity(loss: float | None) -> float | None:
    """Return exp(loss); None if the loss is not finite, or above 709 nats, the limit of a double."""
    try:
        return None if loss is None or not math.isfinite(loss) else math.exp(loss)
    except OverflowError:
        return None
