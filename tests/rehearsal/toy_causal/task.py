"""Objective and data of a task of next tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from neobert.objectives import TokenObjective
from neobert.tasks.pretraining.metrics import MaskedTokenMetrics
from neobert.tasks.pretraining.task import PretrainingData
from neobert.tasks.rank_data import task_over


def build(config, prepared, world, backbone, *, on_sign=lambda: None):
    """Build the task."""
    return task_over(
        backbone,
        PretrainingData(config, prepared, world, backbone.model.config.vocab_size, on_sign),
        objective=TokenObjective(backbone, targets_only=True),
        metrics=partial(MaskedTokenMetrics, world.device),
        worst_case=with_every_target,
        targets_per_token=0.9,
    )


def with_every_target(batch, *, is_training: bool):
    """Label every token, for the worst case of time and memory."""
    return replace(batch, labels=batch.input_ids.clone(), num_targets=batch.input_ids.numel())
