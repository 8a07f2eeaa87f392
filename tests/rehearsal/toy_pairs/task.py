"""Cross-entropy of each first half over the second halves of the microbatch, by mean vectors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from neobert.data.batches.targets import IGNORED
from neobert.model.attention import recording
from neobert.model.heads import pool
from neobert.objectives.labelled import LabelledObjective
from neobert.objectives.objective import Objective
from neobert.objectives.tokens import Score
from neobert.tasks.rank_data import RankData, segment_lengths, task_over
from neobert.tasks.token_metrics import TokenMetrics


def are_candidates(groups):
    """Return a mask of the second texts of the examples. A test plants a fault here."""
    return (groups.diff(prepend=groups[:1] - 1) == 0) & (groups >= 0)


class PairsObjective(Objective):
    """The loss."""

    units = LabelledObjective.units

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.model = backbone, backbone.model
        self.capacity = self.eval_capacity = None
        self.attention_ran = {}

    def score(self, labels, groups, inputs) -> Score:
        hidden = self.backbone.hidden(inputs).unflatten(0, inputs["input_ids"].shape)
        vectors = pool(hidden, inputs["attention_mask"], "avg", inputs["cu_seqlens"]).float()
        firsts, seconds = labels != IGNORED, are_candidates(groups)
        scores = vectors[firsts] @ vectors[seconds].T
        targets = (groups[seconds] == groups[firsts][:, None]).int().argmax(1)
        loss = F.cross_entropy(scores, targets, reduction="sum")
        return Score(loss, (scores.argmax(1) == targets).sum())

    def forward(self, num_targets, labels, groups, **inputs):
        with recording(self.attention_ran):
            return self.score(labels, groups, inputs).loss_sum

    @torch.no_grad()
    def evaluate(self, num_targets, labels, groups, **inputs):
        return self.score(labels, groups, inputs)


class PairsData(RankData):
    """Microbatches with the examples of their texts."""

    def inputs(self, batch, device):
        return super().inputs(batch, device) | {"groups": batch.groups.to(device)}

    def flops(self, batch):
        return self.shape.block_flops(segment_lengths(batch).tolist())


def build(config, prepared, world, backbone, *, on_sign=lambda: None):
    """Build the task."""
    return task_over(
        backbone,
        PairsData(config, prepared, world, backbone.model.config.vocab_size, on_sign),
        objective=PairsObjective(backbone),
        metrics=partial(TokenMetrics, world.device),
        worst_case=with_every_target,
        targets_per_token=0.05,
    )


def with_every_target(batch, *, is_training: bool):
    """Label the first text of every example."""
    is_first = ~are_candidates(batch.groups) & (batch.groups >= 0)
    return replace(batch, labels=torch.where(is_first, 0, IGNORED), num_targets=int(is_first.sum()))
