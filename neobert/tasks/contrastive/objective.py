"""Text vectors of a microbatch, from which the step computes its loss.

Shapes: K texts, padding included; D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neobert.families.backbone import Backbone
from neobert.model.attention import record_kernels
from neobert.model.heads import pool
from neobert.objectives.objective import Objective


class Embedder(Objective):
    """Encoder, pooling and L2 normalization.

    Its forward returns vectors and not a loss: a loss compares the texts of all microbatches of a step.
    """

    def __init__(self, backbone: Backbone, pooling: str) -> None:
        super().__init__()
        self.backbone, self.model, self.pooling = backbone, backbone.model, pooling
        self.capacity = self.eval_capacity = None
        self.attention_used = {}

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:  # noqa: ARG002
        """Return the normalized vectors of the texts in fp32, [K, D]."""
        with record_kernels(self.attention_used):
            return self.vectors(inputs)

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:  # noqa: ARG002
        """Return the vectors of the texts, [K, D]."""
        return self.vectors(inputs)

    def vectors(self, inputs: dict[str, Any]) -> Tensor:
        """Return pooled, normalized vectors in fp32: a temperature of 0.05 magnifies rounding 20 times."""
        hidden = self.backbone.hidden(inputs).unflatten(0, inputs["input_ids"].shape).float()
        pooled = pool(hidden, inputs["attention_mask"], self.pooling, inputs["cu_seqlens"])
        return F.normalize(pooled, dim=-1)

    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units."""
        return self.backbone.units
