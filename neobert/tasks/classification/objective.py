"""Classification objective, over padded rows and packed runs.

Shapes: N labelled texts (rows, or entries of a packed run's cu_seqlens, empty ones included), L labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neobert.tasks.labelled import LabelledObjective


class ClassificationObjective(LabelledObjective):
    """Sum the cross-entropy over classes, or the squared error of scores, over the labelled texts."""

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """Return logits [N, L] in fp32."""
        hidden = self.model.model(**inputs).last_hidden_state
        pooled = self.model.pooled(hidden, inputs["attention_mask"], inputs["cu_seqlens"])
        logits: Tensor = self.model.classify(pooled)
        return logits.to(torch.float32)
