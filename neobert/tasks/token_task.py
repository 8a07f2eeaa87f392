"""Tasks whose targets are tokens of the vocabulary: objective, metrics and data of a rank."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from neobert.config.schedules import MaskingRates
from neobert.data.batches.document_stream import DocumentStream
from neobert.data.batches.streams import Microbatch, describe_loader
from neobert.data.batches.targets import IGNORED
from neobert.families.table import max_row_length
from neobert.objectives import Objective, check_labels, token_objective_for
from neobert.objectives.objective import max_targets
from neobert.tasks.rank_data import RankData, segment_lengths, task_over
from neobert.tasks.token_metrics import TokenMetrics
from neobert.training.loop.task import Guesser, Task, TaskInputs

log = logging.getLogger(__name__)


def token_task(
    run: TaskInputs,
    rates: MaskingRates,
    *,
    targets_only: bool = True,
    guesser: Guesser | None = None,
) -> Task:
    """Build a task that predicts tokens: objective, metrics and data of a run.

    Args:
        rates: targets per token in training and in evaluations; the most, if their number varies.
        targets_only: the head runs on the targets only, and not on every token.
        guesser: masked texts at which the model guesses after each evaluation.
    """
    config, prepared, device = run.config, run.prepared, run.world.device
    if prepared.eval is None:
        log.warning("no evaluation: the text has no evaluation split, and no documents are held out")
    is_stream = isinstance(prepared.train, DocumentStream)
    log.info("data loader: %s", describe_loader(config.dataset, is_stream=is_stream))
    objective = token_objective_for(config, run.backbone, device.type, rates, targets_only=targets_only)
    return task_over(
        run,
        partial(TokenData, targets_only=targets_only),
        objective=objective,
        metrics=partial(TokenMetrics, device, max_row_length(config)),
        worst_case=partial(with_most_targets, objective, rates),
        targets_per_token=rates.training,
        guesser=guesser,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenData(RankData):
    """Microbatches of one rank, with their inputs and FLOPs.

    Attributes:
        targets_only: the head runs on the targets only.
    """

    targets_only: bool = True

    def inputs(self, batch: Microbatch, device: torch.device) -> dict[str, Any]:
        """Return the arguments of the objective. Raises `IndexError` for a label outside the vocabulary."""
        check_labels(batch.labels, self.vocab_size)
        return RankData.inputs(self, batch, device)

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward, without padding."""
        decoded = batch.num_targets if self.targets_only else batch.num_tokens
        blocks = self.shape.block_flops(segment_lengths(batch).tolist())
        return blocks + self.shape.head_flops * self.shape.decoder_products * decoded


def with_most_targets(
    objective: Objective, rates: MaskingRates, batch: Microbatch, *, is_training: bool
) -> Microbatch:
    """Return the microbatch with the maximum number of targets, for the worst case of time and memory.

    That is the decoder's capacity or, if it has none, the most targets at these rates. The targets are
    spread evenly over the microbatch, as the decoder gathers them from all positions.
    """
    ids = batch.input_ids.flatten()
    capacity = objective.capacity if is_training else objective.eval_capacity
    probability = rates.training if is_training else rates.evaluation
    labels = torch.full_like(ids, IGNORED)
    positions = torch.linspace(0, ids.numel() - 1, capacity or max_targets(ids.numel(), probability)).long()
    labels[positions] = ids[positions]
    num_targets = int((labels != IGNORED).sum())
    return replace(batch, labels=labels.reshape(batch.input_ids.shape), num_targets=num_targets)
