"""A NeoBERT's blocks over packed tokens on this project's kernels, and the loss that goes with them.

The parameters stay the model's own, in fp32; every product reads a bf16 copy. The residual stream is bf16.

Shapes: T packed tokens, M rows that are decoded, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neobert.kernels import flash4
from neobert.kernels.attention import BLOCK, rotary_attention
from neobert.kernels.fused_block import Weights, encoder_block
from neobert.kernels.loss import linear_cross_entropy
from neobert.kernels.norm import add_rms_norm, rms_norm
from neobert.kernels.products import row_rstd
from neobert.kernels.swiglu import swiglu_down
from neobert.kernels.tiles import attention_tiles, rotary_table
from neobert.model import NeoBERT, NeoBERTLMHead
from neobert.objectives.masked_lm import MaskedLMObjective
from neobert.objectives.step_kernels import StepKernels

COMPUTE = torch.bfloat16


class KernelObjective(MaskedLMObjective):
    """The masked-language-model loss with its blocks, norms and decoder on this project's kernels."""

    def __init__(self, model: NeoBERTLMHead, kernels: StepKernels, capacity: int) -> None:
        super().__init__(model, masked_logits_only=True, capacity=capacity)
        self.is_fused = kernels.name == "fused"
        self.uses_flash4 = kernels.attention == "flash_attn_4"

    def _summed_loss(self, num_rows: int, labels: Tensor, inputs: dict[str, Any]) -> Tensor:
        with torch.autocast(labels.device.type, enabled=False):
            hidden, labels = self._targets(num_rows, labels, inputs)
            decoder = self.model.decoder
            return linear_cross_entropy(self._normed(hidden), decoder.weight, decoder.bias, labels)

    def encode(self, inputs: dict[str, Any]) -> Tensor:
        """Return the residual stream [T, D]; its norm is left to the rows that are decoded."""
        longest = inputs["max_seqlen"] if self.uses_flash4 else 0
        run = run_fused if self.is_fused else run_triton
        with torch.autocast(inputs["input_ids"].device.type, enabled=False):
            return run(
                self.model.model, inputs["input_ids"], inputs["position_ids"], inputs["cu_seqlens"], longest
            )

    def _normed(self, hidden: Tensor) -> Tensor:
        norm = self.model.model.layer_norm
        return rms_norm(hidden, norm.weight, self.model.config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Norm rows of the residual stream and decode them: [M, D] to [M, V]."""
        return self.model.decoder(self._normed(hidden))


def run_fused(
    model: NeoBERT, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, max_seqlen: int
) -> Tensor:
    """Run blocks whose elementwise work happens in their products; [T] to [T, D].

    max_seqlen: 0 for this project's attention, else the bound of the segments for FlashAttention 4.
    """
    config = model.config
    rotary = rotary_table(position_ids, config.dim_head, config.rope_theta, torch.float16)
    segments = _segments(cu_seqlens, position_ids.shape[0], max_seqlen)
    x = model.encoder(input_ids).to(COMPUTE)
    rstd = row_rstd(x.detach(), config.norm_eps)
    for block in model.transformer_encoder:
        x, rstd = encoder_block(
            x,
            rstd,
            block_weights(block),
            rotary,
            segments,
            num_heads=config.num_attention_heads,
            eps=config.norm_eps,
            max_seqlen=max_seqlen,
        )
    return x


def run_triton(
    model: NeoBERT, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, max_seqlen: int
) -> Tensor:
    """Run the blocks on torch's products and Triton programs between them. Arguments as for `run_fused`."""
    config, blocks = model.config, [block_weights(block) for block in model.transformer_encoder]
    rotary = rotary_table(position_ids, config.dim_head, config.rope_theta)
    segments = _segments(cu_seqlens, position_ids.shape[0], max_seqlen)
    heads, eps = config.num_attention_heads, config.norm_eps
    x = model.encoder(input_ids).to(COMPUTE)
    normed = rms_norm(x, blocks[0].attention_norm, eps)
    next_norms = [*(block.attention_norm for block in blocks[1:]), None]
    for block, next_norm in zip(blocks, next_norms, strict=True):
        attended = _attend(_product(normed, block.qkv), rotary, segments, max_seqlen, heads)
        x, normed = add_rms_norm(x, _product(attended, block.wo), block.ffn_norm, eps)
        branch = swiglu_down(_product(normed, block.w12), block.w3.to(COMPUTE))
        if next_norm is None:
            return x + branch
        x, normed = add_rms_norm(x, branch, next_norm, eps)
    raise AssertionError("a model has a block")


def block_weights(block: Any) -> Weights:
    """Return a block's parameters as the kernels take them."""
    return Weights(
        block.attention_norm.weight,
        block.qkv.weight,
        block.wo.weight,
        block.ffn_norm.weight,
        block.ffn.w12.weight,
        block.ffn.w3.weight,
    )


def _segments(cu_seqlens: Tensor, num_tokens: int, max_seqlen: int) -> Tensor:
    return cu_seqlens if max_seqlen else attention_tiles(cu_seqlens, num_tokens, BLOCK)


def _attend(qkv: Tensor, rotary: Tensor, segments: Tensor, max_seqlen: int, num_heads: int) -> Tensor:
    if max_seqlen:
        return flash4.rotary_attention(qkv, rotary, segments, max_seqlen, num_heads)
    return rotary_attention(qkv, rotary, segments, num_heads)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.to(COMPUTE).t()
