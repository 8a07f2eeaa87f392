"""Token classification: model, objective, metrics and data of a rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.store.prepare import PreparedData
from neobert.data.store.token_store import TokenStore
from neobert.model import NeoBERTForTokenClassification
from neobert.parallel import World
from neobert.tasks.fine_tuning import build_model, build_task, label_settings
from neobert.tasks.labelled import LabelledObjective
from neobert.tasks.rank_data import RankData, segment_lengths
from neobert.tasks.token_classification.labels import TAGS
from neobert.tasks.token_classification.metrics import TagMetrics
from neobert.tasks.token_classification.probe import tagger_answers
from neobert.training.loop.task import Task


def build(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    *,
    is_fresh: bool,
    on_sign: Callable[[], None] = lambda: None,
) -> Task:
    """Build model, objective and data of a token classification run. Arguments as for `build_model`."""
    section = config.token_classification
    model, kernels = build_model(
        NeoBERTForTokenClassification,
        config,
        prepared,
        world,
        is_fresh=is_fresh,
        classifier_dropout=section.dropout,
        num_labels=len(section.label_names),
        **label_settings(section.label_names),
    )
    return build_task(
        model,
        kernels,
        TokenClassificationData(config, prepared, world, model.config.vocab_size, on_sign),
        objective=TokenClassificationObjective(model),
        metrics=partial(TagMetrics, world.device, section.label_names),
        worst_case=with_every_label,
        probe=partial(tagger_answers, num_labels=model.num_labels),
        targets_per_token=labelled_share(prepared),
    )


class TokenClassificationObjective(LabelledObjective):
    """Sum the cross-entropy over the first tokens of words."""

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """Return the logits of every token, [B, S, L] or [T, L], in fp32."""
        hidden = self.model.model(**inputs).last_hidden_state
        logits: Tensor = self.model.classifier(self.model.dropout(hidden))
        return logits.to(torch.float32)


class TokenClassificationData(RankData):
    """Microbatches of one rank, with their inputs and FLOPs."""

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward, without padding."""
        labels = len(self.config.token_classification.label_names)
        head = 6 * self.shape.hidden_size * labels * batch.num_tokens
        return self.shape.block_flops(segment_lengths(batch).tolist()) + head


def labelled_share(prepared: PreparedData) -> float:
    """Return the share of the training tokens that begin a word."""
    assert isinstance(prepared.train, TokenStore)
    labels = prepared.train.columns[TAGS]
    return float((labels != IGNORED).mean())


def with_every_label(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label every token of a full microbatch, for the worst case of time and memory."""
    labels = torch.zeros_like(batch.input_ids)
    return replace(batch, labels=labels, num_targets=labels.numel())
