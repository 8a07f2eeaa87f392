"""The logits that exist at once while the loss is computed, and their memory."""

from __future__ import annotations

import math

from neobert.config.schema import RunConfig
from neobert.families.shape import BF16_BYTES, FP32_BYTES, ModelShape
from neobert.kernel_table import OWN_KERNELS
from neobert.plan.flops import MEAN_DOCUMENT_TOKENS
from neobert.tasks import spec_of

OWN_ROWS_PER_CHUNK = 8192
"""Rows that the decoder of this project's kernels scores at a time."""

WHOLE_VALUES = 2**28
"""The model's own decoder computes up to this number of logits at once: 1 GiB in fp32."""

CHUNK_VALUES = 2**26
"""Logits of one chunk of a larger microbatch: 256 MiB in fp32, enough work for every multiprocessor."""

ROW_MULTIPLE = 128


def rows_per_chunk(num_rows: int, vocab_size: int) -> int:
    """Return the rows that the model's own decoder scores at a time: all of them if their logits are few."""
    if num_rows * vocab_size <= WHOLE_VALUES:
        return max(1, num_rows)
    return max(ROW_MULTIPLE, CHUNK_VALUES // vocab_size // ROW_MULTIPLE * ROW_MULTIPLE)


def scored_rows(config: RunConfig, shape: ModelShape, num_tokens: int) -> int:
    """Return the expected rows that the head scores in a microbatch of so many tokens, at the most."""
    return math.ceil(spec_of(config).head(config, shape).most_scored(num_tokens, MEAN_DOCUMENT_TOKENS))


def logits_bytes(
    config: RunConfig, shape: ModelShape, num_tokens: int, kernels: str, compute_bytes: int
) -> int:
    """Return the bytes that are alive at once while the loss of a microbatch is computed.

    The modules hold logits in the compute type, in fp32, and their gradient. In chunks, and on this project's
    kernels, the decoder's gradient in fp32 is computed with the loss and held until the backward pass.
    """
    width, rows = spec_of(config).head(config, shape).width, scored_rows(config, shape, num_tokens)
    decoder_gradient = width * shape.hidden_size * FP32_BYTES
    if kernels in OWN_KERNELS:
        # Logits are turned into their gradient in place.
        return width * min(rows, OWN_ROWS_PER_CHUNK) * BF16_BYTES + decoder_gradient
    at_once = min(rows, rows_per_chunk(rows, width))
    held = decoder_gradient if at_once < rows else 0
    return at_once * width * (compute_bytes + 2 * FP32_BYTES) + held


def logits_reason(config: RunConfig, shape: ModelShape, num_tokens: int, kernels: str) -> str:
    """Say what `logits_bytes` counts."""
    width, rows = spec_of(config).head(config, shape).width, scored_rows(config, shape, num_tokens)
    positions = f"predicted positions of {num_tokens:,} tokens per microbatch x {width:,}"
    if kernels in OWN_KERNELS:
        return f"{positions}, {OWN_ROWS_PER_CHUNK:,} at a time in bf16, and the decoder's gradient"
    forms = "in the compute type, in fp32, and their gradient"
    at_once = rows_per_chunk(rows, width)
    if at_once < rows:
        return f"{positions}, {at_once:,} at a time {forms}, and the decoder's gradient"
    return f"{positions} {forms}"
