"""Training objective of tasks with labelled text, for padded rows and packed runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neobert.data.batches.targets import IGNORED
from neobert.model.attention import recording
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.objectives.objective import Objective


class Predictions(NamedTuple):
    """Evaluation of one microbatch: summed loss, logits [..., L] in fp32, labels [...]."""

    loss_sum: Tensor
    logits: Tensor
    labels: Tensor


class LabelledObjective(Objective):
    """Sum the loss over the labels of a microbatch. Subclasses define `logits`."""

    model: NeoBERTPreTrainedModel

    def __init__(self, model: NeoBERTPreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.capacity = self.eval_capacity = None
        self.attention_ran = {}

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:  # noqa: ARG002
        """Return the summed loss of a microbatch, fp32; ignored labels are -100 or NaN."""
        with recording(self.attention_ran):
            return summed_loss(self.logits(inputs), labels)

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Predictions:  # noqa: ARG002
        """Return the loss and the logits of a microbatch."""
        logits = self.logits(inputs)
        return Predictions(summed_loss(logits, labels), logits, labels)

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """Return the logits [..., L] of the labels [...], in fp32."""
        raise NotImplementedError

    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units: blocks and embedding, but not the head."""
        encoder = self.model.model
        return [*encoder.transformer_encoder, encoder.encoder]


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum the loss of logits [..., L] over labels [...]: int64 classes, or float32 scores with L = 1."""
    if not labels.is_floating_point():
        logits, labels = logits.flatten(0, -2), labels.flatten()
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    scores = logits.squeeze(-1)
    # A slot without a text has no error and no gradient.
    wanted = torch.where(labels.isnan(), scores.detach(), labels)
    return F.mse_loss(scores, wanted, reduction="sum")
