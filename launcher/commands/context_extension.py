"""Keys of a run file that trains weights on longer rows (`--context`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from launcher.commands.starter_file import BYTES_PER_TOKEN
from launcher.commands.starting_weights import Weights
from neobert.config import ConfigError, from_dict
from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.table import longest_row
from neobert.runfiles.checkpoint.state import read_config

MOSTLY = 0.5
"""Share of a text's tokens in long documents from which short documents are left out."""

Keys = Iterator[tuple[str, Any, str]]


def parent_of(weights: Weights) -> RunConfig | None:
    """Return the config of the run whose checkpoint the weights are; None for a folder of another program."""
    with suppress(ProjectError, ConfigError, KeyError, TypeError):
        return from_dict(read_config(weights.folder))
    return None


def least_length(lengths: Sequence[int], positions: int) -> int:
    """Return `positions` if documents of that many tokens hold most of a text; else 1, which keeps them all.

    `lengths` are sizes in bytes.
    """
    long = sum(each for each in lengths if each >= positions * BYTES_PER_TOKEN)
    return positions if long >= MOSTLY * sum(lengths) > 0 else 1


def rows_of(parent: RunConfig, length: int) -> tuple[int, int]:
    """Return rows per microbatch and microbatches per step of `length` tokens, with the parent's tokens.

    The parent may have trained in several processes, and the new run begins with one.
    """
    trainer, world = parent.trainer, parent.distributed.nproc_per_node * parent.distributed.nnodes
    of_microbatch = trainer.per_device_train_batch_size * longest_row(parent)
    rows = max(1, of_microbatch // length)
    of_step = of_microbatch * trainer.gradient_accumulation_steps * world
    return rows, max(1, round(of_step / (rows * length)))


def batch_keys(parent: RunConfig, length: int) -> Keys:
    """Yield the batch: as many tokens per step as `parent`, the run of the weights or the profile."""
    rows, accumulation = rows_of(parent, length)
    of_evaluation = parent.trainer.per_device_eval_batch_size * longest_row(parent)
    comment = f"{rows * accumulation * length:,} tokens per step, as before"
    yield "trainer.per_device_train_batch_size", rows, comment
    yield "trainer.per_device_eval_batch_size", max(1, of_evaluation // length), ""
    yield "trainer.gradient_accumulation_steps", accumulation, ""


def comparison_keys(parent: RunConfig, weights: Weights) -> Keys:
    """Yield what compares the first evaluation with the last one of the parent run."""
    yield "trainer.eval_source_path", weights.place, "its evaluation: step 0 must not be worse"
    yield "trainer.eval_max_batches", parent.trainer.eval_max_batches, "as in that evaluation"
    rate = masking_rates(parent.datacollator).evaluation
    yield "datacollator.mlm_probability_eval", rate, "as in that evaluation"
    yield "datacollator.mask_all", parent.datacollator.mask_all, "as in that evaluation"
