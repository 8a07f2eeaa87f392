"""Token types of pairs: 0 for the first text of a document and its separator, 1 for the second text.

Nothing stores them: they follow from the separators that the tokenizer writes. Imports torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.tasks.specs import spec_of


def separator_of(config: RunConfig, tokenizer: TokenizerBundle, num_types: int) -> int | None:
    """Return the id after which the second text of a pair begins; None if all tokens have type 0.

    That is so without pairs, and as in `separator_of_pairs`.
    """
    return separator_of_pairs(tokenizer, num_types) if spec_of(config).frames_pairs(config) else None


def separator_of_pairs(tokenizer: TokenizerBundle, num_types: int) -> int | None:
    """Return the id; None for a model of one type, or a tokenizer that gives one type to both texts."""
    if num_types < 2 or not tokenizer.types_pairs:
        return None
    return next(reversed(tokenizer.pair_framing.between), None)


def token_types(ids: Tensor, positions: Tensor, separator: int) -> Tensor:
    """Return the types [..., T] of tokens; `positions` begin at 0 in each document."""
    is_separator = ids == separator
    before = is_separator.cumsum(-1) - is_separator.long()
    first = torch.arange(ids.shape[-1], device=ids.device) - positions
    return (before - before.gather(-1, first.expand_as(ids))).clamp(max=1)
