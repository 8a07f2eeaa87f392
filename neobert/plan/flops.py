"""Floating-point work of a step, and the width below which a GPU waits for its memory.

D hidden, T tokens.
"""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.plan.hardware import Assumptions
from neobert.tasks import spec_of

MEAN_DOCUMENT_TOKENS = 217
RIDGE_FACTOR = 4 / 3


def segment_tokens(config: RunConfig, max_length: int, *, is_packed: bool) -> int:
    """Return the length over which a token attends: the padded row, or the assumed mean document."""
    if not is_packed:
        return max_length
    return min(max(MEAN_DOCUMENT_TOKENS, config.dataset.min_length), max_length)


def flops_per_token(config: RunConfig, shape: ModelShape, segment: int) -> float:
    """Return training FLOPs per token, forward and backward, in segments of `segment` tokens."""
    head = spec_of(config).head(config, shape)
    scored = 6 * head.weights * head.scored(1, segment)
    return 6 * shape.parameters.linear + scored + shape.attention_flops([segment]) / segment


def ridge_width(assumptions: Assumptions) -> float:
    """Return the width at which the qkv product is as bound by memory as by compute.

    T x D times D x 3D does 6 T D^2 FLOPs on 8 T D bytes in bf16, which is 0.75 D per byte; the ridge is where
    that meets peak over bandwidth.
    """
    return RIDGE_FACTOR * assumptions.peak_flops_per_device / assumptions.hbm_bytes_per_s


def attainable_flops(config: RunConfig, shape: ModelShape, assumptions: Assumptions) -> float:
    """Return the peak at the run's precision, lowered in proportion for a model narrower than the ridge."""
    narrowness = min(1.0, shape.hidden_size / ridge_width(assumptions))
    return peak_at_precision(config, assumptions) * narrowness


def peak_at_precision(config: RunConfig, assumptions: Assumptions) -> float:
    """Return the dense peak for the precision that the run computes in, FLOP/s."""
    if config.trainer.mixed_precision == "bf16":
        return assumptions.peak_flops_per_device
    return assumptions.tf32_flops_per_device if config.trainer.tf32 else assumptions.fp32_flops_per_device
