"""QK-Clip (arXiv:2507.20534): hold attention logits below a threshold by shrinking the query and key weights.

Muon lets the norms of query and key weights grow where AdamW does not, and logits with them, until the
softmax chooses one token and training diverges.

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
from neobert.optim.fused_rows import head_rows
from neobert.parallel import own_part, part_like


class QKClip:
    """Measures the logits every `interval` steps after the update, and shrinks heads above the threshold."""

    def __init__(
        self, encoder: NeoBERT, *, threshold: float, alpha: float, interval: int, chunk_size: int
    ) -> None:
        self._blocks: Iterable[Any] = encoder.transformer_encoder
        self._meter = LogitMeter(encoder, chunk_size)
        self._threshold = threshold
        self._alpha = alpha
        self._interval = interval
        self.highest: Tensor | None = None
        """The largest logits that were last measured, before they were cut: [L, N]."""

    def is_due(self, step: int) -> bool:
        """Return whether the logits of this step, counted from one, are measured."""
        return step % self._interval == 0

    @torch.no_grad()
    def __call__(self, inputs: dict[str, Any]) -> None:
        """Measure on an objective's inputs, agree over the ranks, and shrink. All ranks call it."""
        highest = self._meter.measure(inputs)
        if dist.is_initialized():
            dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        self.highest = highest
        for block, largest in zip(self._blocks, highest, strict=True):
            shrink_heads(block.qkv.weight, largest, self._threshold, self._alpha)


def build_qk_clip(config: OptimizerConfig, model: nn.Module) -> QKClip | None:
    """Build the clip around a model's encoder; None for an optimizer that does not clip logits."""
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

    Logits are bilinear in Q and K, and rotations commute with scaling, so the largest becomes the threshold.
    Heads below it are unchanged, and so are heads with a NaN logit, for which the guard stops the run.

    Args:
        qkv: the fused weight [3 N H, D], rows grouped by head; whole or sharded.
        largest: the largest logit of each head [N].

    Raises `ValueError` for a weight that does not hold Q, K and V of each head.
    """
    if qkv.shape[0] % (3 * len(largest)):
        raise ValueError(
            f"a qkv weight of {qkv.shape[0]} rows does not hold Q, K and V of {len(largest)} heads"
        )
    is_above = (largest > threshold) & largest.isfinite()
    ratio = torch.where(is_above, threshold / largest, 1.0)
    head_dim = qkv.shape[0] // (3 * len(largest))
    rows = head_rows(ratio**alpha, ratio ** (1 - alpha), head_dim).to(qkv.dtype)
    own_part(qkv).mul_(own_part(part_like(rows.expand(qkv.shape), qkv)))
