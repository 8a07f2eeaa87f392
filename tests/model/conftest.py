"""A second implementation to hold the model against, written the slow way, in float64.

It shares nothing with the model but the tensors' names: complex rotation, one head at a time, a dense mask
that says who may see whom.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from neobert.model import NeoBERTConfig, NeoBERTLMHead


@pytest.fixture(autouse=True)
def _one_thread_one_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def tiny_config(**changes) -> NeoBERTConfig:
    """A model whose weights are large enough for a leak to show."""
    shape = {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "embedding_init_range": 1.0,
        "decoder_init_range": 0.3,
        "attn_backend": "sdpa",
    }
    return NeoBERTConfig(**{**shape, **changes})


@dataclass(frozen=True)
class Packed:
    """A flat run: ids [T], positions [T], boundaries [K+1]."""

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    lengths: tuple[int, ...]

    def inputs(self) -> dict[str, Tensor | int]:
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "cu_seqlens": self.cu_seqlens,
            "max_seqlen": self.max_seqlen,
        }

    def spans(self) -> list[slice]:
        bounds = self.cu_seqlens.tolist()
        return [slice(a, b) for a, b in pairwise(bounds)]

    def allowed(self) -> Tensor:
        """True [T, T] where two tokens share a segment."""
        segment = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths))
        return segment[:, None] == segment[None, :]


def pack_lengths(lengths, vocab_size: int = 96) -> Packed:
    lengths = tuple(lengths)
    return Packed(
        input_ids=torch.randint(5, vocab_size, (sum(lengths),)),
        position_ids=torch.cat([torch.arange(n) for n in lengths]),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        max_seqlen=max(lengths),
        lengths=lengths,
    )


@dataclass(frozen=True)
class Reference:
    """What the architecture computes, from a state dict in float64."""

    weights: dict[str, Tensor]
    config: NeoBERTConfig

    def hidden(self, ids: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
        """ids [T], positions [T], allowed [T, T] -> [T, D]."""
        x = self.weights["model.encoder.weight"][ids] * self.config.embedding_multiplier
        for i in range(self.config.num_hidden_layers):
            block = f"model.transformer_encoder.{i}."
            x = x + self._attention(block, self._norm(x, block + "attention_norm"), positions, allowed)
            x = x + self._swiglu(block, self._norm(x, block + "ffn_norm"))
        return self._norm(x, "model.layer_norm")

    def logits(self, ids: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
        hidden = self.hidden(ids, positions, allowed)
        return hidden @ self.weights["decoder.weight"].T + self.weights["decoder.bias"]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean_square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
        return self.weights[name + ".weight"] * x / (mean_square + self.config.norm_eps) ** 0.5

    def _swiglu(self, block: str, x: Tensor) -> Tensor:
        w12 = self.weights[block + "ffn.w12.weight"]
        width = w12.shape[0] // 2
        gate, up = x @ w12[:width].T, x @ w12[width:].T
        return (gate / (1 + torch.exp(-gate)) * up) @ self.weights[block + "ffn.w3.weight"].T

    def _attention(self, block: str, x: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
        width = x.shape[-1] // self.config.num_attention_heads
        heads = []
        for rows in self.weights[block + "qkv.weight"].split(3 * width):
            q, k, v = (x @ part.T for part in rows.split(width))
            scores = self._turn(q, positions) @ self._turn(k, positions).T / width**0.5
            heads.append(torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1) @ v)
        return torch.cat(heads, dim=-1) @ self.weights[block + "wo.weight"].T

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(len(x), -1, 2).contiguous())
        rate = self.config.rope_theta ** (-torch.arange(pairs.shape[1], dtype=torch.float64) / pairs.shape[1])
        angles = positions[:, None].double() * rate
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(1)


def reference_of(model: NeoBERTLMHead) -> Reference:
    """A float64 copy of the model's weights, each a leaf that collects gradients."""
    weights = {name: p.detach().double().requires_grad_() for name, p in model.state_dict().items()}
    return Reference(weights, model.config)


def error_ratio(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm of what was wanted."""
    found, wanted = found.detach().double(), wanted.detach()
    return float((found - wanted).norm() / wanted.norm())


@pytest.fixture
def make_config() -> Callable[..., NeoBERTConfig]:
    return tiny_config


@pytest.fixture
def make_model() -> Callable[..., NeoBERTLMHead]:
    return lambda **changes: NeoBERTLMHead(tiny_config(**changes)).eval()


@pytest.fixture
def pack() -> Callable[..., Packed]:
    return pack_lengths


@pytest.fixture
def reference() -> Callable[[NeoBERTLMHead], Reference]:
    return reference_of


@pytest.fixture
def ratio() -> Callable[[Tensor, Tensor], float]:
    return error_ratio
