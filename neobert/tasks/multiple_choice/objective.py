"""Loss of choices: cross-entropy over the choices of each row.

Shapes: N segments, padding included; C choices of a row, at most.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.data.batches.targets import IGNORED
from neobert.families.backbone import Backbone
from neobert.objectives.labelled import LabelledObjective, Predictions

LOWEST = -1e30
"""Logit of a choice that a row does not have.

It is finite, because padding rows have no choices at all: a softmax over -inf alone is NaN.
"""


class ChoiceObjective(LabelledObjective):
    """Objective with cross-entropy of the right choice, summed over rows, as transformers computes it."""

    def __init__(self, backbone: Backbone, max_choices: int) -> None:
        super().__init__(backbone)
        self.max_choices = max_choices

    def score(self, labels: Tensor, inputs: dict[str, Any]) -> Predictions:
        """Return the loss, the logits by row [N, C], and the right choice of each row [N]."""
        groups = inputs.pop("groups")
        logits, right = group_by_row(self.logits(inputs)[:, 0], labels, groups, self.max_choices)
        loss = F.cross_entropy(logits, right, ignore_index=IGNORED, reduction="sum")
        return Predictions(loss, logits, right)


def group_by_row(logits: Tensor, labels: Tensor, groups: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return row logits [N, C] and labels [N] from segment logits and labels; `groups` [N] are row numbers.

    There are fewer rows than segments: the remaining rows have no choice and no label.
    """
    size = len(groups)
    number = torch.arange(size, device=groups.device)
    ascending = groups.masked_fill(groups < 0, size)
    first, end = (torch.searchsorted(ascending, number, right=right) for right in (False, True))
    index = first[:, None] + number.new_tensor(range(most))
    is_other = index >= end[:, None]
    rows = logits[index.clamp(max=size - 1)].masked_fill(is_other, LOWEST)
    return rows, labels[first.clamp(max=size - 1)].masked_fill(first == end, IGNORED)
