"""The loss of labelled texts, over padded rows and packed runs.

Shapes: B rows, S row length, T packed tokens, K segment slots, N labelled texts (B or K), L labels, D hidden.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neobert.data.batches.targets import IGNORED
from neobert.model import NeoBERTForSequenceClassification
from neobert.model.attention import recording
from neobert.objectives.objective import Objective


class Predictions(NamedTuple):
    """One microbatch of an evaluation: the summed loss, logits [N, L] in fp32, labels [N]."""

    loss_sum: Tensor
    logits: Tensor
    labels: Tensor


class ClassificationObjective(Objective):
    """Sum the cross-entropy over classes, or the squared error of scores, over the labelled texts."""

    def __init__(self, model: NeoBERTForSequenceClassification) -> None:
        super().__init__()
        self.model = model
        self.capacity = self.eval_capacity = None
        self.attention_ran = {}

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:  # noqa: ARG002
        """Return the summed loss of a microbatch, fp32; labels [N], -100 or NaN where there is no text."""
        with recording(self.attention_ran):
            return summed_loss(self.logits(inputs), labels)

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Predictions:  # noqa: ARG002
        """Return the loss and the logits of a microbatch."""
        logits = self.logits(inputs)
        return Predictions(summed_loss(logits, labels), logits, labels)

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """Return [N, L] in fp32: of the rows, or of the slots of a packed run, empty ones included."""
        hidden = self.model.model(**inputs).last_hidden_state
        pooled = self.model.pooled(hidden, inputs["attention_mask"], inputs["cu_seqlens"])
        return self.model.classify(pooled).to(torch.float32)

    def units(self) -> list[nn.Module]:
        """Return the blocks and the embedding; the head is the objective's own."""
        encoder = self.model.model
        return [*encoder.transformer_encoder, encoder.encoder]


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum the loss of logits [N, L] over labels [N]: int64 classes, or float32 scores with L = 1."""
    if not labels.is_floating_point():
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    scores = logits.squeeze(-1)
    # A slot without a text has no error and no gradient.
    wanted = torch.where(labels.isnan(), scores.detach(), labels)
    return F.mse_loss(scores, wanted, reduction="sum")
