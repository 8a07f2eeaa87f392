"""A task of next tokens: the target rule shifts the labels once, and the loss does not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from neobert.data.batches.targets import IGNORED, Targets
from neobert.objectives import TokenObjective
from neobert.tasks.pretraining.examples import Documents
from neobert.tasks.pretraining.metrics import MaskedTokenMetrics
from neobert.tasks.pretraining.task import PretrainingData
from neobert.tasks.rank_data import task_over


class NextToken:
    """Label each token with the next one of its document, and the last with nothing."""

    labels_tokens = True

    def targets(self, segments, *, epoch: int, seed: int) -> Targets:
        labels = np.full_like(segments.ids, IGNORED)
        is_last = np.zeros(len(labels), dtype=np.bool_)
        is_last[np.cumsum(segments.lengths) - 1] = True
        labels[:-1] = segments.ids[1:]
        labels[is_last] = IGNORED
        return Targets(segments.ids, labels)


class NextTokenDocuments(Documents):
    """Documents whose targets are next tokens."""

    def target_rule(self, _tokenizer) -> NextToken:
        return NextToken()


def build_examples(config) -> NextTokenDocuments:
    """Build the examples of a run."""
    return NextTokenDocuments(config)


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
