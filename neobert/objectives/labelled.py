"""Loss of labelled texts or tokens, for padded rows and packed rows.

Shapes: N rows, or segments in a packed row's cu_seqlens, including empty ones; L outputs of the head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neobert.data.batches.targets import IGNORED
from neobert.families.backbone import Backbone
from neobert.model.attention import record_kernels
from neobert.model.heads import pool
from neobert.objectives.objective import Objective


class Predictions(NamedTuple):
    """Evaluation of one microbatch: summed loss, logits [..., L] in fp32, labels [...]."""

    loss_sum: Tensor
    logits: Tensor
    labels: Tensor


class LabelledObjective(Objective):
    """Objective with summed cross-entropy for labelled texts or tokens, or squared error for scores."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        assert backbone.head is not None
        self.backbone, self.head = backbone, backbone.head
        self.model = backbone.model
        self.capacity = self.eval_capacity = None
        self.attention_used = {}

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:  # noqa: ARG002
        """Return the summed loss of a microbatch, fp32; ignored labels are -100 or NaN."""
        with record_kernels(self.attention_used):
            return self.score(labels, inputs).loss_sum

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Predictions:  # noqa: ARG002
        """Return loss, logits and labels of a microbatch, without gradients."""
        return self.score(labels, inputs)

    def score(self, labels: Tensor, inputs: dict[str, Any]) -> Predictions:
        """Return summed loss, logits and labels of a microbatch, with the autograd graph.

        Subclasses override this for other losses.
        """
        logits = self.logits(inputs)
        return Predictions(summed_loss(logits, labels), logits, labels)

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """Return the logits in fp32: [N, L] of texts, or [B, S, L] or [T, L] of tokens."""
        hidden = self.backbone.hidden(inputs).unflatten(0, inputs["input_ids"].shape)
        if self.head.pooling is not None:
            hidden = pool(hidden, inputs["attention_mask"], self.head.pooling, inputs["cu_seqlens"])
        return self.head(hidden).to(torch.float32)

    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units."""
        return self.backbone.units


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum the loss of logits [..., L] over labels [...]: int64 classes, or float32 scores with L = 1."""
    if not labels.is_floating_point():
        logits, labels = logits.flatten(0, -2), labels.flatten()
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    scores = logits.squeeze(-1)
    # A slot without a text has no error and no gradient.
    wanted = torch.where(labels.isnan(), scores.detach(), labels)
    return F.mse_loss(scores, wanted, reduction="sum")
