"""Auxiliary masked-LM loss against forgetting in contrastive training: objective, loss term, metrics.

The model reads the texts of a microbatch once more, with masks, and the gradient of that pass is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.families.backbone import Backbone
from neobert.objectives.objective import ModuleWork
from neobert.objectives.tokens import Score, TokenObjective
from neobert.parallel import World
from neobert.tasks.contrastive.metrics import PairMetrics
from neobert.tasks.contrastive.objective import Embedder
from neobert.tasks.contrastive.section import MASKED_LM_LOSS
from neobert.training.loop.task import StepServices


class VectorsAndScore(NamedTuple):
    """Vectors of the texts of a microbatch [K, D], and the score of its masked tokens."""

    vectors: Tensor
    words: Score


class MixedEmbedder(Embedder):
    """Embedder that also predicts masked tokens."""

    def __init__(self, backbone: Backbone, pooling: str, words: TokenObjective) -> None:
        super().__init__(backbone, pooling)
        self.words = words

    def forward(
        self, num_targets: int, labels: Tensor, *, predicts_words: bool = False, **inputs: Any
    ) -> Tensor:
        """Return the vectors of the texts; with `predicts_words`, the summed loss of the masked tokens."""
        plain, masked = split_inputs(inputs)
        return self.words(**masked) if predicts_words else super().forward(num_targets, labels, **plain)

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> VectorsAndScore:  # type: ignore[override]
        """Return the vectors of the texts, and the score of the masked tokens."""
        plain, masked = split_inputs(inputs)
        return VectorsAndScore(super().evaluate(num_targets, labels, **plain), self.words.evaluate(**masked))

    def module_work(self) -> list[ModuleWork]:
        """Return the computations with the weight of the vocabulary head (see `Objective.module_work`)."""
        return self.words.module_work()


def split_inputs(inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a microbatch's inputs into encoder inputs and masked-LM inputs."""
    plain = {name: each for name, each in inputs.items() if "masked" not in name}
    masked = {"num_targets": inputs["num_masked"], "labels": inputs["masked_labels"]}
    return plain, {**plain, **masked, "input_ids": inputs["masked_ids"]}


@dataclass(slots=True)
class MaskedTerm:
    """Masked-LM term of a step: weight x mean loss over all ranks' masked tokens in the step.

    Attributes:
        loss_sum: this rank's loss since the last line of metrics, on the device; None before the first step.
        num_masked: number of tokens in `loss_sum`.
    """

    weight: float
    loss_sum: Tensor | None = None
    num_masked: int = 0

    def loss_scale(self, world: World, batches: Sequence[Microbatch]) -> float:
        """Return the factor of each microbatch's summed loss, and count the masked tokens of `batches`."""
        own = sum(batch.num_masked for batch in batches)
        (of_all_ranks,) = world.sum_over_ranks([own])
        self.num_masked += own
        return self.weight * world.dp_size / max(of_all_ranks, 1)  # ranks average their gradients

    def add_gradients(self, trainer: StepServices, inputs: dict[str, Any], scale: float) -> None:
        """Add a microbatch's masked-LM gradients, times a factor, to the weights."""
        with trainer.stopwatch.section("forward"):
            loss = trainer.module(**inputs, predicts_words=True)
        with trainer.stopwatch.section("backward"):
            (loss * scale).backward()
        found = loss.detach().double()
        self.loss_sum = found if self.loss_sum is None else self.loss_sum + found

    def take(self, world: World) -> dict[str, float]:
        """Return the mean masked-LM loss over all ranks (0 if no token was masked), and reset the sums."""
        loss_sum = torch.zeros(1) if self.loss_sum is None else self.loss_sum
        total = float(world.all_reduce_sum(loss_sum.to(world.device, torch.float64).clone()))
        (num_masked,) = world.sum_over_ranks([self.num_masked])
        self.loss_sum, self.num_masked = None, 0
        return {"train/mlm_loss": total / max(num_masked, 1)}


class MixedMetrics(PairMetrics):
    """Metrics of pairs, and the loss of the masked tokens."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._losses: list[Tensor] = []
        self._num_masked = 0

    def add(self, score: VectorsAndScore, batch: Microbatch) -> None:  # type: ignore[override]
        """Add the vectors and the loss of a microbatch."""
        super().add(score.vectors, batch)
        self._losses.append(score.words.loss_sum.double())
        self._num_masked += batch.num_masked

    def values(self, world: World) -> dict[str, float | None]:
        """Return the metrics of `PairMetrics`, and the masked-LM loss, or None if no token is masked."""
        total = float(world.all_reduce_sum(torch.stack(self._losses).sum()))
        (num_masked,) = world.sum_over_ranks([self._num_masked])
        return super().values(world) | {MASKED_LM_LOSS.name: total / num_masked if num_masked else None}
