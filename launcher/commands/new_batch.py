"""Rows of an optimizer step in the run file of a new run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from launcher.commands.starter_file import Device
from launcher.commands.text_lengths import mean_tokens
from neobert.config.schema import RunConfig, TrainerConfig
from neobert.tasks.specs import spec_of

TEXTS_PER_STEP = 32
PAIRS_PER_STEP = 128
"""Each pair is a negative of the others: with few, there is little to tell apart."""
MORE_HELD_OUT = 0.2
MIN_STEPS_PER_PASS = 2
"""By an estimate of the tokens, which may be twice as many as there are: one microbatch has to be full."""
MAX_MICROBATCH = {"cpu": 8192, "gpu": 32_768}
"""Most tokens of a microbatch where a step may have several at no loss."""


class Batch(NamedTuple):
    """Rows of a step, the microbatches that share them, and the estimated number of texts of a step."""

    rows: int
    microbatches: int = 1
    texts: int = 0


def batch_of_table(
    config: RunConfig,
    lengths: Sequence[int],
    length: int,
    bytes_per_token: float,
    device: Device,
    *,
    is_packed: bool,
) -> Batch:
    """Return the batch of a table with texts of these `lengths` in bytes, in rows of `length` tokens."""
    spec = spec_of(config)
    has_pairs, of_example = spec.predicts == "pairs", spec.texts(config)
    fitting = int(len(lengths) / of_example * (1 - MORE_HELD_OUT) / MIN_STEPS_PER_PASS)
    examples = max(1, min(PAIRS_PER_STEP if has_pairs else TEXTS_PER_STEP, fitting))
    texts, microbatches = examples * of_example, 1
    if is_packed:
        rows = max(of_example, round(texts * mean_tokens(lengths, length, bytes_per_token) / length))
    else:
        rows = texts if has_pairs else min(rows_per_step(config.trainer), max(1, fitting))
    if has_pairs or spec.stores_targets:
        microbatches = math.ceil(rows * length / MAX_MICROBATCH[device])
        rows = max(of_example, math.ceil(rows / microbatches)) * microbatches
    return Batch(rows, microbatches, texts)


def rows_per_step(trainer: TrainerConfig) -> int:
    """Return the rows of a step of one process."""
    return (trainer.per_device_train_batch_size or 1) * (trainer.gradient_accumulation_steps or 1)
