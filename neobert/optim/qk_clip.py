"""QK-Clip (arXiv:2507.20534): limit attention logits by scaling down query and key weights.

With Muon, the norms of query and key weights can grow more than with AdamW. The logits grow with them, until
the softmax saturates and training diverges.

Shapes: L blocks, N heads, H channels of a head, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig
from neobert.model import NeoBERT
from neobert.optim.attention_logits import LogitMeter
from neobert.optim.fused_rows import expand_head_factors
from neobert.parallel import local_shard, shard_like


class QKClip:
    """QK-Clip every `interval` steps: measure the logits and scale down heads above the threshold."""

    def __init__(
        self, encoder: NeoBERT, *, threshold: float, alpha: float, interval: int, chunk_size: int
    ) -> None:
        self._blocks: Iterable[Any] = encoder.transformer_encoder
        self._meter = LogitMeter(encoder, chunk_size)
        self._threshold = threshold
        self._alpha = alpha
        self._interval = interval
        self.highest: Tensor | None = None
        """Largest logit of each head [L, N] at the last measurement, before clipping; None until then."""

    def is_due(self, step: int) -> bool:
        """Return whether QK-Clip runs after this step, counted from 1."""
        return step % self._interval == 0

    @torch.no_grad()
    def __call__(self, inputs: dict[str, Any]) -> None:
        """Measure the logits on a microbatch, take the maximum over the ranks, and scale the weights.

        `inputs`: arguments of the objective. All ranks must call it.
        """
        highest = self._meter.measure(inputs)
        if dist.is_initialized():
            dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        self.highest = highest
        for block, largest in zip(self._blocks, highest, strict=True):
            shrink_heads(block.qkv.weight, largest, self._threshold, self._alpha)


def build_qk_clip(config: OptimizerConfig, model: nn.Module) -> QKClip | None:
    """Build QK-Clip for a model's encoder; return None if the optimizer does not use it."""
    if not OPTIMIZERS[config.name].clips_logits:
        return None
    encoder = next(module for module in model.modules() if isinstance(module, NeoBERT))
    return QKClip(
        encoder,
        threshold=config.qk_clip_threshold,
        alpha=config.qk_clip_alpha,
        interval=config.qk_clip_interval,
        chunk_size=config.qk_clip_chunk_size,
    )


@torch.no_grad()
def shrink_heads(qkv: Tensor, largest: Tensor, threshold: float, alpha: float) -> None:
    """Scale the rows of Q by ratio ** alpha and of K by ratio ** (1 - alpha), ratio = threshold / largest.

    Logits are bilinear in Q and K, and rotary embedding commutes with scaling, so the largest logit becomes
    the threshold. Heads at or below the threshold, or with a logit that is NaN or infinite, are unchanged.

    Args:
        qkv: fused weight [3 N H, D] with rows grouped by head; may be sharded.
        largest: largest logit of each head [N].

    Raises `ValueError` if the number of rows is not divisible by 3 N.
    """
    if qkv.shape[0] % (3 * len(largest)):
        raise ValueError(
            f"a qkv weight with {qkv.shape[0]} rows cannot be split into Q, K and V of {len(largest)} heads"
        )
    is_above = (largest > threshold) & largest.isfinite()
    ratio = torch.where(is_above, threshold / largest, 1.0)
    head_dim = qkv.shape[0] // (3 * len(largest))
    rows = expand_head_factors(ratio**alpha, ratio ** (1 - alpha), head_dim).to(qkv.dtype)
    local_shard(qkv).mul_(local_shard(shard_like(rows.expand(qkv.shape), qkv)))
