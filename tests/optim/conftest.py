"""A NeoBERT of two blocks, and packed documents for it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from neobert.config.schema import OptimizerConfig
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.optim import build_optimizer, clip_gradients

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


def clipped_updates(name: str, limit: float, device: str = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter, clipped by `clip_gradients` and by torch, after each of two steps.

    The second step has other gradients: what clips the first must not stay.
    """
    torch.manual_seed(0)
    models = [torch.nn.Linear(30, 20, device=device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    # A large eps: the update of Adam is else the same for gradients of any scale.
    ours, theirs = (build_optimizer(OptimizerConfig(name=name, lr=1e-2, eps=1.0), each) for each in models)
    for factor in (10.0, 0.01):
        gradients = [factor * torch.randn_like(each) for each in models[0].parameters()]
        for model in models:
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
        clip_gradients(ours, models[0].parameters(), limit, get_total_norm(gradients))
        clip_grad_norm_(models[1].parameters(), limit)
        for optimizer in (ours, theirs):
            optimizer.step()
        yield from zip(models[0].parameters(), models[1].parameters(), strict=True)
