"""Loss of spans, and the best span of each window, for padded rows and packed rows.

Shapes: N windows, padding included, of up to L tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.data.batches.targets import IGNORED
from neobert.objectives.labelled import LabelledObjective, Predictions
from neobert.tasks.question_answering.examples import BITS

LOWEST = -1e30
"""Logit of a position outside the window. Finite, so that the loss of padding windows is 0, not NaN."""


class SpanObjective(LabelledObjective):
    """Objective with the mean cross-entropy of an answer's first and last token, summed over windows.

    The softmax is over the tokens of one window, as in transformers' models for question answering.
    """

    def score(self, labels: Tensor, inputs: dict[str, Any]) -> Predictions:
        """Return the loss, the logits by window [N, L, 2], and the labels."""
        logits = group_by_window(self.logits(inputs), inputs)
        first, last = answer_positions(labels)
        loss = _cross_entropy(logits[..., 0], first) + _cross_entropy(logits[..., 1], last)
        return Predictions(loss / 2, logits, labels)


def group_by_window(logits: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Return the logits [N, L, 2] of padded rows, or of the segments of a packed row [T, 2]."""
    if (bounds := inputs["cu_seqlens"]) is None:
        return logits.masked_fill(~inputs["attention_mask"][..., None], LOWEST)
    position = torch.arange(inputs["max_seqlen"], device=logits.device)
    index = (bounds[:-1, None] + position).clamp(max=len(logits) - 1)
    return logits[index].masked_fill((position >= bounds.diff()[:, None])[..., None], LOWEST)


def answer_positions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the answer's first and last token; -100 for windows that the loss ignores."""
    is_ignored = labels == IGNORED
    first, last = labels >> BITS, labels & ((1 << BITS) - 1)
    return first.masked_fill(is_ignored, IGNORED), last.masked_fill(is_ignored, IGNORED)


def _cross_entropy(logits: Tensor, positions: Tensor) -> Tensor:
    return F.cross_entropy(logits, positions, ignore_index=IGNORED, reduction="sum")


def best_spans(logits: Tensor, first: Tensor, end: Tensor, max_tokens: int) -> Tensor:
    """Return each window's no-answer score, best span score, and the span's positions, fp32 [N, 4].

    A span has up to `max_tokens` tokens from `first` [N] to before `end` [N], the context's tokens. The
    score is the sum of two logits. All spans are compared; the shortest wins a tie.
    """
    starts, ends = logits.unbind(-1)
    position = torch.arange(logits.shape[1], device=logits.device)
    is_other = (position < first[:, None]) | (position >= end[:, None])
    of_start, of_end = (each.masked_fill(is_other, LOWEST) for each in (starts, ends))
    best, at = (of_start + of_end).max(1)
    last = at
    for more in range(1, min(max_tokens, len(position))):
        score, begin = (of_start[:, :-more] + of_end[:, more:]).max(1)
        is_better = score > best
        best, at = torch.where(is_better, score, best), torch.where(is_better, begin, at)
        last = torch.where(is_better, begin + more, last)
    return torch.stack([starts[:, 0] + ends[:, 0], best, at.float(), last.float()], dim=1)
