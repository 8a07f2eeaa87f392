"""Number of optimizer steps of a run: `trainer.max_steps`, or fewer if `trainer.max_epochs` ends it earlier.

Before the data is prepared, the size of an epoch is known only if each line of a file is one labelled text.
"""

from __future__ import annotations

import math
import os
import re
from functools import lru_cache
from pathlib import Path

from neobert.config.schedules import steps_of
from neobert.config.schema import DatasetConfig, RunConfig, TrainerConfig
from neobert.families.table import longest_row
from neobert.plan.derived import Derived, EpochSize
from neobert.plan.size import PACKED_FILL, num_processes, segment_tokens
from neobert.tasks import spec_of
from neobert.units import BYTES_PER_MIB

HEADED = (".csv", ".tsv")
ROW_FILES = (*HEADED, ".jsonl", ".ndjson")
TRAINING_FILE = re.compile(r"train(ing)?([-_.\s]|$)")
MAX_FILES_MIB = 256
BLOCK_BYTES = 1 << 20


def plan_steps(config: RunConfig, epoch: EpochSize | None) -> Derived[int]:
    """Derive the number of optimizer steps: the lower of `trainer.max_steps` and `trainer.max_epochs`.

    The trainer computes the same number from the prepared data.
    """
    trainer = config.trainer
    if trainer.max_epochs is None:
        return Derived(trainer.max_steps, "trainer.max_steps")
    if epoch is None:
        reason = "trainer.max_steps; trainer.max_epochs may end the run earlier, and the size of an epoch is "
        return Derived(trainer.max_steps, f"{reason}not known before the data is prepared")
    world = num_processes(config)
    steps = epoch_steps(trainer, epoch.num_microbatches, world)
    per_step = f"{trainer.gradient_accumulation_steps * world:,} per step"
    reason = f"{trainer.max_epochs:g} epochs x {epoch.num_microbatches:,} microbatches / {per_step}"
    if steps > trainer.max_steps:
        return Derived(
            trainer.max_steps,
            f"trainer.max_steps, below {steps:,} steps of trainer.max_epochs: {reason}",
        )
    return Derived(steps, f"{reason}; {epoch.source}")


def epoch_steps(trainer: TrainerConfig, num_microbatches: int, world_size: int) -> int:
    """Convert `trainer.max_epochs` to optimizer steps, given the microbatches of one epoch; at least 1."""
    assert trainer.max_epochs is not None
    return max(1, steps_of(trainer.max_epochs * num_microbatches / world_size, trainer))


def epoch_size(config: RunConfig) -> EpochSize | None:
    """Estimate the size of an epoch by counting lines of local training files; None if not possible.

    It is possible if `trainer.max_epochs` is set and each line of the files is one labelled text.
    """
    num_texts = _training_texts(config.dataset) if _rows_are_texts(config) else 0
    if num_texts < 1:
        return None
    rows, length = config.trainer.per_device_train_batch_size, longest_row(config)
    if not config.datacollator.pack_sequences:
        return EpochSize(math.ceil(num_texts / rows), f"{num_texts:,} texts in batches of {rows}")
    tokens = segment_tokens(config, length, is_packed=True)
    return EpochSize(
        math.ceil(num_texts * tokens / (rows * length * PACKED_FILL)),
        f"{num_texts:,} texts of about {tokens} tokens, assumed, packed into {rows} x {length}",
    )


def _rows_are_texts(config: RunConfig) -> bool:
    dataset = config.dataset
    is_whole = dataset.path is not None and not dataset.mixture and "[" not in dataset.train_split
    return config.trainer.max_epochs is not None and spec_of(config).labels_texts and is_whole


def _training_texts(dataset: DatasetConfig) -> int:
    """Count the training texts: lines of the files, minus headers and texts held out for evaluation.

    Returns 0 if a file is compressed, Parquet or unreadable, or if the files exceed `MAX_FILES_MIB`.
    """
    path = Path(os.path.expanduser(str(dataset.path)))
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        files = [file for file in files if file == path or TRAINING_FILE.match(file.name.lower())]
        states = [file.stat() for file in files]
        is_too_large = sum(state.st_size for state in states) > MAX_FILES_MIB * BYTES_PER_MIB
        if is_too_large or any(file.suffix not in ROW_FILES for file in files):
            return 0
        num_lines = sum(
            _count_lines(file, state.st_size, state.st_mtime_ns)
            for file, state in zip(files, states, strict=True)
        )
    except OSError:
        return 0
    num_headers = sum(file.suffix in HEADED for file in files) if dataset.column_names is None else 0
    num_texts = num_lines - num_headers
    if files != [path] or dataset.eval_split is not None:
        return num_texts
    return num_texts - (dataset.eval_samples or round(num_texts * (dataset.validation_split or 0.0)))


@lru_cache(maxsize=16)
def _count_lines(file: Path, _size: int, _changed_ns: int) -> int:
    """Count the lines of a file, cached by path, size and modification time."""
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(BLOCK_BYTES), b""))
