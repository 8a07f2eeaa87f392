"""Row length and rows per optimizer step, for a new run file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from launcher.commands.starter_file import Device
from neobert.config.schema import RunConfig, TrainerConfig
from neobert.plurals import percent
from neobert.tasks.specs import spec_of

TEXTS_PER_STEP = 32
PAIRS_PER_STEP = 128
"""Pairs per step. Each pair provides negatives for the others, so a step of few pairs teaches little."""
MORE_HELD_OUT = 0.2
MIN_STEPS_PER_PASS, OF_CONVERSATIONS = 2, 8
"""Minimum steps per pass by an estimate of the tokens: one microbatch must be full, and the text may have
half as many tokens as estimated. Conversations with short turns may have a fifth."""
MAX_MICROBATCH = {"cpu": 8192, "gpu": 32_768}
"""Maximum tokens per microbatch, by device, if a step can have several microbatches without a loss of
speed."""

MIN_BYTES_PER_TOKEN = 3
"""Low estimate for English text in WordPiece, and for Chinese text with one character per token, if fewer
were not measured. A low estimate gives rows that are too long rather than truncated texts."""
COVERED = 0.99
"""Share of the texts that fit into a row of the chosen length."""
MIN_TOKENS, SPECIAL_TOKENS = 32, 2
UNFILLED_TEXTS = 1.5
"""Number of texts that the unused space at the end of a packed microbatch would hold. With this value, runs
on eight tables made 2.9 to 3.2 passes when `init` had predicted 3."""


class BatchSize(NamedTuple):
    """Rows per step, the number of microbatches that share them, and the estimated texts per step."""

    rows: int
    microbatches: int = 1
    texts: int = 0


def batch_for_table(
    config: RunConfig,
    lengths: Sequence[int],
    length: int,
    bytes_per_token: float,
    device: Device,
    *,
    is_packed: bool,
) -> BatchSize:
    """Return the batch for a table, in rows of `length` tokens.

    Args:
        lengths: sizes of the texts in bytes.
        is_packed: whether several texts share a row; otherwise each row has one text.
    """
    spec = spec_of(config)
    has_pairs, of_example = spec.predicts == "pairs", spec.texts(config)
    steps = OF_CONVERSATIONS if spec.stores_targets else MIN_STEPS_PER_PASS
    fitting = int(len(lengths) / of_example * (1 - MORE_HELD_OUT) / steps)
    examples = max(1, min(PAIRS_PER_STEP if has_pairs else TEXTS_PER_STEP, fitting))
    texts, microbatches = examples * of_example, 1
    if is_packed:
        rows = max(of_example, round(texts * mean_tokens(lengths, length, bytes_per_token) / length))
    else:
        rows = texts if has_pairs else min(rows_per_step(config.trainer), max(1, fitting))
    if has_pairs or spec.stores_targets:
        microbatches = math.ceil(rows * length / MAX_MICROBATCH[device])
        rows = max(of_example, math.ceil(rows / microbatches)) * microbatches
    return BatchSize(rows, microbatches, texts)


def rows_per_step(trainer: TrainerConfig) -> int:
    """Return the number of rows per optimizer step of one process."""
    return (trainer.per_device_train_batch_size or 1) * (trainer.gradient_accumulation_steps or 1)


def covering_length(lengths: Sequence[int], bytes_per_token: float) -> int:
    """Return the smallest power of two, in tokens, that holds `COVERED` of the texts with sizes in bytes."""
    covered = sorted(lengths)[int(COVERED * (len(lengths) - 1))]
    return int(2 ** math.ceil(math.log2(max(MIN_TOKENS, max_tokens(covered, bytes_per_token)))))


def truncated_share(lengths: Sequence[int], length: int, bytes_per_token: float) -> float:
    """Return the share of bytes in texts longer than `length` tokens."""
    longer = sum(num_bytes for num_bytes in lengths if num_bytes > length * bytes_per_token)
    return longer / max(1, sum(lengths))


def mean_tokens(lengths: Sequence[int], length: int, bytes_per_token: float) -> float:
    """Return the estimated mean length of the texts in tokens, each cut at `length`."""
    tokens = [min(length, num_bytes / bytes_per_token + SPECIAL_TOKENS) for num_bytes in lengths]
    return sum(tokens) / len(tokens)


def num_text_rows(lengths: Sequence[int], length: int, microbatch_rows: int, bytes_per_token: float) -> float:
    """Return the number of rows of `length` tokens that hold the texts.

    `microbatch_rows` is the number of rows that are packed together; 0 gives each text a row of its own.
    """
    if not microbatch_rows:
        return len(lengths)
    mean = mean_tokens(lengths, length, bytes_per_token)
    unfilled = min(0.5, UNFILLED_TEXTS * mean / (microbatch_rows * length))
    return len(lengths) * mean / (length * (1 - unfilled))


def num_piece_rows(lengths: Sequence[int], length: int, bytes_per_token: float, *, is_packed: bool) -> float:
    """Return the number of rows that hold the texts in pieces of `length` tokens."""
    tokens = [num_bytes / bytes_per_token for num_bytes in lengths]
    return sum(tokens) / length if is_packed else sum(math.ceil(number / length) for number in tokens)


def comment_on_length(lengths: Sequence[int], length: int, limit: int, bytes_per_token: float) -> str:
    """Return the run file's comment on rows of `length` tokens.

    `limit` is the longest sequence that the model supports.
    """
    unit = "the model's positions" if length == limit else "tokens"
    num_longer = sum(num_bytes > length * bytes_per_token for num_bytes in lengths)
    if not num_longer:
        return f"{unit}; by an estimate, no text is longer"
    return f"{unit}; by an estimate, {percent(num_longer / len(lengths))} of the texts are longer"


def max_tokens(num_bytes: int, bytes_per_token: float) -> int:
    """Return a high estimate of the number of tokens in a text of `num_bytes` bytes."""
    return math.ceil(num_bytes / min(MIN_BYTES_PER_TOKEN, bytes_per_token))
