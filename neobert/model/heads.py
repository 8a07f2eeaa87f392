"""Pooling of token vectors, and the losses of the heads. Copied into every checkpoint folder.

Shapes: B rows, S row length, T packed tokens, K segments, D hidden size, V classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import normalize_mask


def pool(hidden: Tensor, attention_mask: Tensor | None, how: str, cu_seqlens: Tensor | None = None) -> Tensor:
    """Pool rows [B, S, D], or the segments of a packed row [T, D], by first token, mean or maximum.

    Only the tokens that a mask [B, S] marks as real are used; padding may be on either side. Mean and maximum
    are computed in fp32, and are zeros for a text without tokens.

    Args:
        how: "cls", "avg" or "max".
        cu_seqlens: [K + 1] bounds of the segments up to T; "cls" returns an arbitrary token for an empty one.

    Raises `ValueError` if "avg" or "max" gets a mask of another rank.
    """
    if cu_seqlens is not None:
        return _pool_segments(hidden.flatten(0, -2), cu_seqlens, how)
    if how == "cls":
        return _first_token(hidden, attention_mask)
    is_real = _real_tokens(hidden, attention_mask)
    values = hidden.to(torch.float32)
    if how == "avg":
        total = values.masked_fill(~is_real, 0.0).sum(dim=1)
        pooled = total / is_real.sum(dim=1).clamp(min=1)
    else:
        # A row of padding alone has no maximum: -inf would become NaN in the classifier.
        highest = values.masked_fill(~is_real, -torch.inf).amax(dim=1)
        pooled = highest.masked_fill(~is_real.any(dim=1), 0.0)
    return pooled.to(hidden.dtype)


def _first_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the vector of each row's first real token, [B, D]; position 0 without a mask [B, S]."""
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden[:, 0]
    first = _real_tokens(hidden, attention_mask)[..., 0].to(torch.int32).argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), first]


def _real_tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return a mask [B, S, 1] of the real tokens. Raises `ValueError` for a mask of another rank."""
    if attention_mask is None:
        return torch.ones_like(hidden[..., :1], dtype=torch.bool)
    if attention_mask.dim() != 2:
        raise ValueError(
            f"avg and max pooling need an attention_mask [B, S], got {attention_mask.dim()} dimensions"
        )
    mask = normalize_mask(attention_mask)
    assert mask is not None
    is_real = mask if mask.dtype == torch.bool else mask == 0
    return is_real[:, 0, 0, :, None]


def _pool_segments(hidden: Tensor, cu_seqlens: Tensor, how: str) -> Tensor:
    if how == "cls":
        return hidden[cu_seqlens[:-1].long().clamp(max=len(hidden) - 1)]
    lengths = cu_seqlens.diff().long()
    values = hidden.to(torch.float32)
    if how == "avg":
        sums = torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)
        return (sums / lengths.clamp(min=1)[:, None]).to(hidden.dtype)
    highest = torch.segment_reduce(values, "max", lengths=lengths, unsafe=True)
    return highest.masked_fill((lengths == 0)[:, None], 0.0).to(hidden.dtype)


def token_loss(logits: Tensor, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
    """Return the mean cross-entropy in fp32 of logits [..., V] over the labels [...] that are not -100.

    With num_items, the number of labels in all microbatches of a step, the sum is divided by that number. The
    loss is zero without labels.
    """
    labels = labels.flatten()
    total = F.cross_entropy(logits.flatten(0, -2).to(torch.float32), labels, reduction="sum")
    return mean_over_items(total, (labels != -100).sum() if num_items is None else num_items)


def mean_over_items(total: Tensor, num_items: Tensor | int) -> Tensor:
    """Divide a sum over labels by the number of labels in the step; zero without labels."""
    return total / torch.as_tensor(num_items, device=total.device).clamp(min=1)


def infer_problem_type(labels: Tensor, num_labels: int) -> str:
    """Return the problem type by the name that transformers pipelines expect."""
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def classification_loss(
    logits: Tensor, labels: Tensor, problem: str, num_items: Tensor | int | None
) -> Tensor:
    """Return the fp32 loss of a problem type: cross-entropy, MSE or, for multi-label, binary cross-entropy.

    The loss is the mean over the batch, or the sum divided by num_items if that is given.
    """
    logits, reduction = logits.to(torch.float32), "mean" if num_items is None else "sum"
    if problem == "single_label_classification":
        loss = F.cross_entropy(logits, labels.flatten(), reduction=reduction)
    else:
        elementwise = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
        loss = elementwise(logits, labels.to(torch.float32).reshape(logits.shape), reduction=reduction)
    return loss if num_items is None else mean_over_items(loss, num_items)


def span_loss(start: Tensor, end: Tensor, start_positions: Tensor, end_positions: Tensor) -> Tensor:
    """Return the mean fp32 cross-entropy of an answer's first and last token: logits [B, S], positions [B].

    An answer that truncation cut off (a position outside the row) is ignored.
    """
    length = start.shape[1]

    def end_loss(logits: Tensor, positions: Tensor) -> Tensor:
        positions = positions.flatten()
        is_inside = (positions >= 0) & (positions < length)
        return token_loss(logits, torch.where(is_inside, positions, -100), None)

    return (end_loss(start, start_positions) + end_loss(end, end_positions)) / 2
