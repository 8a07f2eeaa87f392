"""Pooling of token vectors to one vector per row. Copied into every checkpoint folder."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import normalize_mask


def pool(hidden: Tensor, attention_mask: Tensor | None, how: str) -> Tensor:
    """Reduce hidden [B, S, D] to [B, D] by its first token ("cls"), mean ("avg") or maximum ("max").

    Only tokens that a mask [B, S] attends count, on whichever side the padding is. Mean and maximum are taken
    in fp32; a row without tokens gives zeros there.
    """
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
    """Return the first token of each row that a mask [B, S] attends; position 0 without such a mask."""
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden[:, 0]
    first = _real_tokens(hidden, attention_mask)[..., 0].to(torch.int32).argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), first]


def _real_tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """True [B, S, 1] where a token counts."""
    if attention_mask is None:
        return torch.ones_like(hidden[..., :1], dtype=torch.bool)
    if attention_mask.dim() != 2:
        raise ValueError("pooling avg and max need an attention_mask [B, S]: it says which tokens are real")
    mask = normalize_mask(attention_mask)
    assert mask is not None
    is_real = mask if mask.dtype == torch.bool else mask == 0
    return is_real[:, 0, 0, :, None]
