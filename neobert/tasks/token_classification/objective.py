"""Token classification objective, over padded rows and packed runs.

Shapes: B rows, S row length, T packed tokens, L labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neobert.tasks.labelled import LabelledObjective


class TokenClassificationObjective(LabelledObjective):
    """Sum the cross-entropy over the first tokens of words."""

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """Return the logits of every token, [B, S, L] or [T, L], in fp32."""
        hidden = self.model.model(**inputs).last_hidden_state
        logits: Tensor = self.model.classifier(self.model.dropout(hidden))
        return logits.to(torch.float32)
