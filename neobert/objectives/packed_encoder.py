"""Cross-entropy of tokens in packed rows, by a NeoBERT with this project's kernels.

It uses the model's fp32 parameters; every matrix product reads a bf16 copy. The residual stream is bf16.

Shapes: T packed tokens, M rows that are decoded, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neobert.families.backbone import Backbone
from neobert.kernels import flash4
from neobert.kernels.attention import BLOCK, attention_tiles, rotary_attention, rotary_table
from neobert.kernels.feed_forward import feed_forward
from neobert.kernels.fused_block import BlockWeights, encoder_block
from neobert.kernels.linear import linear
from neobert.kernels.pointwise import add_rms_norm, rms_norm
from neobert.kernels.products import row_rstd
from neobert.kernels.vocabulary import linear_cross_entropy
from neobert.model.attention import enter_layer, record_kernel
from neobert.model.layers import EncoderBlock, SwiGLU
from neobert.objectives.objective import ModuleWork
from neobert.objectives.step_kernels import StepKernels
from neobert.objectives.tokens import TokenObjective

COMPUTE = torch.bfloat16

Stream = tuple[Tensor, Tensor | None]
"""State between blocks: the residual stream [T, D], and its rstd (fused) or the branch to add (triton)."""


class KernelObjective(TokenObjective):
    """Cross-entropy of tokens, with this project's kernels for blocks, norms and decoder."""

    stream_dtype = COMPUTE

    def __init__(
        self,
        backbone: Backbone,
        kernels: StepKernels,
        capacity: int,
        eval_capacity: int | None = None,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__(backbone, True, capacity, eval_capacity, z_loss)
        self.blocks = BLOCK_STEPS[kernels.name]
        self.attention = kernels.attention
        self._embed = ModuleWork(self.model.get_input_embeddings(), self._embed_packed)
        self._steps = [ModuleWork(block, partial(self.blocks.step, block)) for block in backbone.blocks]

    def compile_parts(self, backend: str) -> None:
        """Compile the embedding, each block and the loss as separate graphs."""
        for work in (self._embed, *self._steps, self._decode):
            work.compile(backend)

    def module_work(self) -> list[ModuleWork]:
        """Return embedding, blocks and decoder: all of them bypass their module's forward."""
        return [self._embed, *self._steps, *super().module_work()]

    def _summed_loss(self, num_rows: int, labels: Tensor, inputs: dict[str, Any]) -> Tensor:
        with torch.autocast(labels.device.type, enabled=False):
            return super()._summed_loss(num_rows, labels, inputs)

    def _decoded_loss(self, hidden: Tensor, labels: Tensor, num_rows: int) -> Tensor:
        hidden, labels = self._select_decoded_rows(hidden, labels, num_rows)
        linear = self.head.linear
        return linear_cross_entropy(
            self.final_states(hidden), linear.weight, linear.bias, labels, z_loss=self.z_loss
        )

    def encode(self, inputs: dict[str, Any]) -> Tensor:
        """Return the residual stream [T, D] before the final norm, which is applied only to decoded rows."""
        config = self.model.config
        # Only FlashAttention 4 takes the length of the longest segment; 0 selects this project's attention.
        longest = inputs["max_seqlen"] if self.attention == "flash_attn_4" else 0
        heads, eps = config.num_attention_heads, config.norm_eps
        with torch.autocast(inputs["input_ids"].device.type, enabled=False):
            stream, rotary, segments = self._embed(
                inputs["input_ids"], inputs["position_ids"], inputs["cu_seqlens"], longest
            )
            for number, step in enumerate(self._steps):
                enter_layer(number)
                record_kernel(self.attention)
                stream = step(stream, rotary, segments, longest, heads, eps)
            return self.blocks.finish(stream)

    def _embed_packed(
        self, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> tuple[Stream, Tensor, Tensor]:
        """Return the initial residual stream, the rotary table and the segments for attention.

        Segments are `cu_seqlens` for FlashAttention 4, else the tiles of this project's attention.
        """
        config = self.model.config
        rotary = rotary_table(position_ids, config.dim_head, config.rope_theta, self.blocks.angles)
        num_tokens = position_ids.shape[0]
        segments = cu_seqlens if max_seqlen else attention_tiles(cu_seqlens, num_tokens, BLOCK)
        x = (self.embed_tokens(input_ids) * config.embedding_multiplier).to(COMPUTE)
        return self.blocks.start(x, config.norm_eps), rotary, segments

    def final_states(self, hidden: Tensor) -> Tensor:
        """Apply the final norm to rows of the residual stream [M, D]."""
        norm = self.model.base_model.layer_norm
        return rms_norm(hidden, norm.weight, self.model.config.norm_eps)


def fused_step(
    block: EncoderBlock,
    stream: Stream,
    rotary: Tensor,
    segments: Tensor,
    max_seqlen: int,
    num_heads: int,
    eps: float,
) -> Stream:
    """Run a block with elementwise operations fused into matrix products; return the next (x, rstd).

    `max_seqlen`: longest segment, for FlashAttention 4; 0 selects this project's attention.
    """
    x, rstd = stream
    assert rstd is not None
    weights = block_weights(block)
    return encoder_block(
        x, rstd, weights, rotary, segments, num_heads=num_heads, eps=eps, max_seqlen=max_seqlen
    )


def triton_step(
    block: EncoderBlock,
    stream: Stream,
    rotary: Tensor,
    segments: Tensor,
    max_seqlen: int,
    num_heads: int,
    eps: float,
) -> Stream:
    """Run a block with torch matrix products and Triton kernels. Arguments as for `fused_step`.

    The stream is (x, output of the previous block's feed-forward branch or None), which the first norm adds.
    """
    x, branch = stream
    weights = block_weights(block)
    if branch is None:
        normed = rms_norm(x, weights.attention_norm, eps)
    else:
        x, normed = add_rms_norm(x, branch, weights.attention_norm, eps)
    attended = _attend(normed, weights.qkv, rotary, segments, max_seqlen, num_heads)
    x, normed = add_rms_norm(x, linear(attended, weights.wo), weights.ffn_norm, eps)
    return x, feed_forward(normed, weights.w12, weights.w3)


@dataclass(frozen=True)
class BlockSteps:
    """Functions of one implementation of the transformer blocks for packed tokens.

    Attributes:
        angles: dtype of the rotary table.
        start: converts embeddings [T, D] and the norms' epsilon to the initial stream.
        step: runs one block; same arguments as `fused_step`.
        finish: converts the last stream to the residual stream [T, D].
    """

    angles: torch.dtype
    start: Callable[[Tensor, float], Stream]
    step: Callable[..., Stream]
    finish: Callable[[Stream], Tensor]


def _with_row_rstd(x: Tensor, eps: float) -> Stream:
    # Detached: the gradient through a norm is part of the backward pass of the block that reads it.
    return x, row_rstd(x.detach(), eps)


def _add_branch(stream: Stream) -> Tensor:
    x, branch = stream
    assert branch is not None, "called before the first block"
    return x + branch


BLOCK_STEPS = {
    # quack reads the angles in the type of the products, and fp16 holds cosines more exactly than bf16.
    "fused": BlockSteps(torch.float16, _with_row_rstd, fused_step, lambda stream: stream[0]),
    "triton": BlockSteps(torch.float32, lambda x, _: (x, None), triton_step, _add_branch),
}
"""Implementations by their name in `neobert.kernel_table.BLOCKS`."""


def block_weights(block: EncoderBlock) -> BlockWeights:
    """Return the parameters of a block with SwiGLU, as the kernels take them."""
    ffn = block.ffn
    assert isinstance(ffn, SwiGLU)
    return BlockWeights(
        block.attention_norm.weight,
        block.qkv.weight,
        block.wo.weight,
        block.ffn_norm.weight,
        ffn.w12.weight,
        ffn.w3.weight,
    )


def _attend(
    normed: Tensor, weight: Tensor, rotary: Tensor, segments: Tensor, max_seqlen: int, num_heads: int
) -> Tensor:
    if max_seqlen:
        return flash4.rotary_attention(normed, weight, rotary, segments, max_seqlen, num_heads)
    return rotary_attention(normed, weight, rotary, segments, num_heads)
