"""The NeoBERT-250M of the step benchmark, its batches, and the kernels it can be built from."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, HIDDEN, HEADS, INNER, LAYERS = 30_528, 768, 12, 2048, 28
THETA, EPS, TOKENS_PER_SLOT = 10_000.0, 1e-5, 128
SHAPES = {
    "attention_norm": (HIDDEN,),
    "qkv": (3 * HIDDEN, HIDDEN),
    "wo": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "w12": (2 * INNER, HIDDEN),
    "w3": (HIDDEN, INNER),
}
LINEAR = LAYERS * sum(math.prod(shape) for shape in SHAPES.values() if len(shape) == 2)


@dataclass(frozen=True)
class Variant:
    """Kernels of the step.

    Attention in {varlen, flash3, flash4, packed}, the elementwise work in {torch, triton, fused}.
    """

    attention: str
    elementwise: str
    is_compiled: bool = True
    is_graph: bool = False


VARIANTS = {
    "varlen": Variant("varlen", "torch"),
    "flash3": Variant("flash3", "torch"),
    "flash4": Variant("flash4", "torch"),
    "packed": Variant("packed", "torch"),
    "packed-triton": Variant("packed", "triton"),
    "packed-triton-graph": Variant("packed", "triton", is_graph=True),
    "flash4-triton": Variant("flash4", "triton"),
    "fused": Variant("packed", "fused", is_compiled=False),
    "fused-compiled": Variant("packed", "fused"),
    "fused-compiled-graph": Variant("packed", "fused", is_graph=True),
    "fused-flash4": Variant("flash4", "fused", is_compiled=False),
    "fused-flash4-compiled": Variant("flash4", "fused"),
    "fused-flash4-compiled-graph": Variant("flash4", "fused", is_graph=True),
}


@dataclass(frozen=True)
class Batch:
    """T tokens, K slots of segments, M masked rows (label -100 beyond the true count)."""

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    masked_rows: Tensor
    labels: Tensor
    max_seqlen: int
    sum_squares: int

    def tensors(self) -> list[Tensor]:
        return [self.input_ids, self.position_ids, self.cu_seqlens, self.masked_rows, self.labels]


def num_masked(tokens: int) -> int:
    return int(0.2 * tokens)


def draw_lengths(kind: str, tokens: int, rng: random.Random) -> list[int]:
    if kind != "packed":
        return [int(kind)] * (tokens // int(kind))
    lengths: list[int] = []
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, 1024, max(8, round(math.exp(rng.gauss(math.log(150), 0.86))))))
    return lengths


def draw_batch(kind: str, tokens: int, seed: int) -> Batch:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = draw_lengths(kind, tokens, rng)
    slots = tokens // TOKENS_PER_SLOT if kind == "packed" else len(lengths)
    assert len(lengths) <= slots
    cu = torch.tensor([0, *lengths]).cumsum(0)
    cu = torch.cat([cu, cu.new_full((slots - len(lengths),), tokens)]).to(torch.int32)
    ids = torch.randint(5, 30_000, (tokens,), generator=generator)
    masked = num_masked(tokens)
    unused = -masked % 128
    rows = torch.randperm(tokens, generator=generator)[:masked].sort().values
    labels = torch.cat([ids[rows], torch.full((unused,), -100)])
    rows = torch.cat([rows, rows.new_zeros(unused)])
    positions = torch.cat([torch.arange(n) for n in lengths])
    longest = 1024 if kind == "packed" else int(kind)
    tensors = (t.cuda() for t in (ids, positions, cu, rows, labels))
    return Batch(*tensors, longest, sum(n * n for n in lengths))


class Encoder(nn.Module):
    """NeoBERT with the published names of a block's tensors, its kernels chosen by the variant."""

    def __init__(self, variant: Variant, max_seqlen: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.variant, self.max_seqlen = variant, max_seqlen
        self.embedding = self._matrix(VOCAB, HIDDEN, dtype=dtype)
        self.decoder = self._matrix(VOCAB, HIDDEN, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(VOCAB, device="cuda", dtype=dtype))
        self.layer_norm = nn.Parameter(torch.ones(HIDDEN, device="cuda", dtype=dtype))
        self.blocks = nn.ModuleList(nn.ParameterDict(self._block(dtype)) for _ in range(LAYERS))

    @staticmethod
    def _matrix(*shape: int, dtype: torch.dtype) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, device="cuda").uniform_(-0.02, 0.02).to(dtype))

    def _block(self, dtype: torch.dtype) -> dict[str, nn.Parameter]:
        ones = torch.ones(HIDDEN, device="cuda", dtype=dtype)
        return {
            name: self._matrix(*shape, dtype=dtype) if len(shape) == 2 else nn.Parameter(ones.clone())
            for name, shape in SHAPES.items()
        }

    def forward(self, ids: Tensor, positions: Tensor, cu: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        run = {"fused": self._fused, "triton": self._triton, "torch": self._torch}[self.variant.elementwise]
        from neobert.kernels.attention import rotary_table

        x = F.embedding(ids, self.embedding).to(torch.bfloat16)
        hidden = run(x, rotary_table(positions, HIDDEN // HEADS, THETA, self._table_dtype()), cu)
        return self._loss(hidden.index_select(0, rows), labels) / num_masked(len(ids))

    def _table_dtype(self) -> torch.dtype:
        return torch.float16 if self.variant.elementwise == "fused" else torch.float32

    def _segments(self, cu: Tensor, tokens: int) -> Tensor:
        from neobert.kernels.attention import BLOCK, attention_tiles

        return attention_tiles(cu, tokens, BLOCK) if self.variant.attention == "packed" else cu

    def _fused(self, x: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        from neobert.kernels.fused_block import Weights, encoder_block
        from neobert.kernels.products import row_rstd

        segments = self._segments(cu, len(x))
        longest = 0 if self.variant.attention == "packed" else self.max_seqlen
        rstd = row_rstd(x.detach(), EPS)
        for block in self.blocks:
            weights = Weights(*(block[name] for name in Weights._fields))
            x, rstd = encoder_block(
                x, rstd, weights, rotary, segments, num_heads=HEADS, eps=EPS, max_seqlen=longest
            )
        return x

    def _triton(self, x: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        from neobert.kernels.pointwise import add_rms_norm, rms_norm, swiglu_down

        segments, blocks = self._segments(cu, len(x)), list(self.blocks)
        normed = rms_norm(x, blocks[0]["attention_norm"], EPS)
        for index, block in enumerate(blocks):
            attended = self._attend(normed @ block["qkv"].t(), rotary, segments)
            x, normed = add_rms_norm(x, attended @ block["wo"].t(), block["ffn_norm"], EPS)
            branch = swiglu_down(normed @ block["w12"].t(), block["w3"])
            if index + 1 < len(blocks):
                x, normed = add_rms_norm(x, branch, blocks[index + 1]["attention_norm"], EPS)
        return x + branch

    def _torch(self, x: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        segments = self._segments(cu, len(x))
        for block in self.blocks:
            normed = F.rms_norm(x, (HIDDEN,), block["attention_norm"], EPS)
            x = x + self._attend(normed @ block["qkv"].t(), rotary, segments) @ block["wo"].t()
            gate, up = (F.rms_norm(x, (HIDDEN,), block["ffn_norm"], EPS) @ block["w12"].t()).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ block["w3"].t()
        return x

    def _attend(self, qkv: Tensor, rotary: Tensor, segments: Tensor) -> Tensor:
        if self.variant.attention == "packed":
            from neobert.kernels.attention import rotary_attention

            return rotary_attention(qkv, rotary, segments, HEADS)
        if self.variant.attention == "flash4":
            from neobert.kernels.flash4 import rotary_attention

            return rotary_attention(qkv, rotary, segments, self.max_seqlen, HEADS)
        return self._attend_varlen(qkv, rotary, segments)

    def _attend_varlen(self, qkv: Tensor, rotary: Tensor, cu: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = qkv.unflatten(-1, (HEADS, 3, -1)).unbind(-2)
        cos, sin = rotary[:, None, : HIDDEN // HEADS].unflatten(-1, (-1, 2)).unbind(-1)
        q, k = (_rotate(t, cos, sin) for t in (q, k))
        return varlen_attn(q, k, v, cu, cu, self.max_seqlen, self.max_seqlen).flatten(1)

    def _loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        if self.variant.elementwise == "torch":
            hidden = F.rms_norm(hidden, (HIDDEN,), self.layer_norm, EPS)
            logits = hidden @ self.decoder.t() + self.bias
            return F.cross_entropy(logits.float(), labels, reduction="sum")
        from neobert.kernels.pointwise import rms_norm
        from neobert.kernels.vocabulary import linear_cross_entropy

        return linear_cross_entropy(rms_norm(hidden, self.layer_norm, EPS), self.decoder, self.bias, labels)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


def flops(tokens: int, sum_squares: float) -> float:
    products = 6 * LINEAR * tokens + 6 * VOCAB * HIDDEN * num_masked(tokens)
    return products + 12 * LAYERS * HIDDEN * sum_squares
