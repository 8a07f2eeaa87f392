"""Planted faults of attention: a token attends to another document, or to earlier tokens alone."""

import pytest
import torch.nn.functional as F

from neobert.families import packed_attention
from neobert.model import attention


def two_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge the bounds of the first two documents of a packed row, wherever attention by SDPA reads them."""
    real = attention.segment_lengths

    def merged(*arguments):
        first, second, *others = real(*arguments)
        return [first + second, *others]

    for module in (packed_attention, attention):
        monkeypatch.setattr(module, "segment_lengths", merged)


def look_back_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give SDPA a causal mask."""
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v, **_: attend(q, k, v, is_causal=True)
    )
