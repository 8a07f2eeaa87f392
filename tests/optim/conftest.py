"""A NeoBERT of two blocks, and packed documents for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from neobert.model import NeoBERTConfig, NeoBERTLMHead

VOCAB, PAD, HEADS, HIDDEN = 61, 0, 4, 32


def tiny_model(**changes: Any) -> NeoBERTLMHead:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "pad_token_id": PAD,
        "attn_backend": "sdpa",
    }
    return NeoBERTLMHead(NeoBERTConfig(**(shape | changes)))


models = st.builds(
    tiny_model,
    rms_norm=st.booleans(),
    rope=st.booleans(),
    hidden_act=st.sampled_from(["swiglu", "gelu"]),
    tie_word_embeddings=st.booleans(),
)


def packed(lengths: list[int], num_tokens: int, seed: int = 0) -> dict[str, Any]:
    """Documents of these lengths in a flat run, padding behind them as a segment of its own."""
    draw = torch.Generator().manual_seed(seed)
    tail = num_tokens - sum(lengths)
    pieces = [*lengths, tail] if tail else lengths
    ids = torch.randint(1, VOCAB, (num_tokens,), generator=draw)
    ids[num_tokens - tail :] = PAD
    bounds = torch.tensor([0, *pieces, 0, 0]).cumsum(0)
    return {
        "input_ids": ids,
        "position_ids": torch.cat([torch.arange(length) for length in pieces]),
        "cu_seqlens": bounds.to(torch.int32),
        "max_seqlen": max(pieces),
        "attention_mask": None,
    }


@pytest.fixture
def make_model():
    """Build a tiny model, always with the same weights."""
    return tiny_model


@pytest.fixture
def make_packed():
    """Build packed inputs."""
    return packed
