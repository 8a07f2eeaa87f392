"""Run file keys for rows that are longer than in the training of the weights (`--context`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from launcher.commands.run_file_entries import Entry
from launcher.commands.starter_file import BYTES_PER_TOKEN
from launcher.commands.starting_weights import CONTEXT, StartingWeights, hint_on_context, require_extendable
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.shape import ModelShape
from neobert.families.table import max_row_length
from neobert.runfiles.continuation import checkpoint_config
from neobert.tasks.specs import spec_of

MOSTLY = 0.5
"""Minimum share of the text in long documents for leaving out short documents."""
SHARE_OF_PEAK = 0.1
"""Lowest learning rate, as a share of the peak rate of the continued run. An encoder of 8 x 512, trained at
2e-3, predicted words from 4,096 tokens away after 95M tokens at 2e-4. ModernBERT used 3e-4 after 8e-4
(arXiv:2412.13663)."""


def context_keys(
    config: RunConfig, shape: ModelShape, weights: StartingWeights, length: int, lengths: Sequence[int]
) -> list[Entry]:
    """Return the keys for longer rows: batch, documents and evaluation.

    Raises `ProjectError` for another task than text, or a model that cannot be extended.

    Args:
        config: the config without these keys.
        length: tokens per row.
        lengths: sizes of the documents in bytes.
    """
    if not (spec := spec_of(config)).is_self_supervised or spec.stores_targets:
        message, hint = f"{CONTEXT} applies only to text without labels", hint_on_context(length)
        raise ProjectError("usage", f"{message}, but the task is {spec.name}", hint, CONTEXT, EXIT_USAGE)
    require_extendable(weights, shape.positions, length)
    parent = _read_parent_config(weights)
    keys = [*_batch_keys(parent or config, length)]
    least = _shortest_document(lengths, weights.positions)
    keys.append(Entry("dataset.min_length", least, "short documents teach nothing about long ones"))
    if parent is not None and parent.task == config.task and spec.predicts == "masked":
        keys += _comparison_keys(parent, weights)
    return keys


def lowest_rate(weights: StartingWeights, task: str) -> float:
    """Return the lowest learning rate for longer rows, or 0 if no run of this task trained the weights."""
    parent = _read_parent_config(weights)
    if parent is None or parent.task != task:
        return 0.0
    return float(f"{SHARE_OF_PEAK * parent.optimizer.lr:.2g}")


def _read_parent_config(weights: StartingWeights) -> RunConfig | None:
    """Return the config of the run that saved the weights, or None if another program saved them."""
    with suppress(ProjectError, KeyError, TypeError):
        return checkpoint_config(weights.folder)
    return None


def _shortest_document(lengths: Sequence[int], positions: int) -> int:
    """Return the minimum document length in tokens: `positions` if longer ones are most of the text, else 1.

    `lengths` are sizes in bytes; `positions` is 0 if the model states none.
    """
    long = sum(each for each in lengths if each >= positions * BYTES_PER_TOKEN)
    return max(1, positions) if long >= MOSTLY * sum(lengths) > 0 else 1


def _batch_rows(parent: RunConfig, length: int) -> tuple[int, int, int]:
    """Return rows of `length` tokens per microbatch, microbatches per step, and the parent's tokens per step.

    The parent may have trained in several processes, and the new run begins with one.
    """
    trainer, world = parent.trainer, parent.distributed.nproc_per_node * parent.distributed.nnodes
    of_microbatch = trainer.per_device_train_batch_size * max_row_length(parent)
    rows = max(1, of_microbatch // length)
    of_step = of_microbatch * trainer.gradient_accumulation_steps * world
    return rows, max(1, round(of_step / (rows * length))), of_step


def _batch_keys(parent: RunConfig, length: int) -> Iterator[Entry]:
    """Yield the batch keys, with about as many tokens per step as `parent`, the config of an earlier run."""
    rows, accumulation, of_step = _batch_rows(parent, length)
    of_evaluation = parent.trainer.per_device_eval_batch_size * max_row_length(parent)
    tokens = rows * accumulation * length
    comment = f"{tokens:,} tokens per step, {'as' if tokens == of_step else f'{of_step:,}'} before"
    yield Entry("trainer.per_device_train_batch_size", rows, comment)
    yield Entry("trainer.per_device_eval_batch_size", max(1, of_evaluation // length))
    yield Entry("trainer.gradient_accumulation_steps", accumulation)


def _comparison_keys(parent: RunConfig, weights: StartingWeights) -> Iterator[Entry]:
    """Yield the keys that make the first evaluation comparable with the parent's last."""
    if parent.plugins.dataset is None:  # code of another run is not imported
        comment = "evaluation of the earlier run: step 0 must not be worse"
        yield Entry("trainer.eval_source_path", weights.place, comment)
    yield Entry("trainer.eval_max_batches", parent.trainer.eval_max_batches, "as in that evaluation")
    masks = parent.datacollator
    yield Entry("datacollator.mlm_probability", masks.mlm_probability, "as in the earlier run")
    yield Entry("datacollator.mlm_probability_eval", masks.mlm_probability_eval, "as in that evaluation")
    yield Entry("datacollator.mask_all", masks.mask_all, "as in that evaluation")
