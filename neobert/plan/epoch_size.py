"""Size of an epoch before the data is prepared, estimated from local training files.

Pretraining files are measured in bytes, files of labelled texts in lines.
"""

from __future__ import annotations

import math
import os
import re
from functools import lru_cache
from pathlib import Path

from neobert.config.corpora import corpus_paths
from neobert.config.schema import DatasetConfig, RunConfig
from neobert.config.text_formats import ROWS_IN_LINES, is_plain
from neobert.data.sources.rows import RowFormat
from neobert.errors import ProjectError
from neobert.families.table import max_row_length
from neobert.plan.derived import EpochSize
from neobert.plan.size import PACKED_FILL, microbatch_fill
from neobert.plurals import percent
from neobert.tasks.specs import spec_of
from neobert.units import BYTES_PER_MIB

BYTES_PER_TOKEN = 4
"""Bytes of text per token, typical of English text in WordPiece."""
CONVERSATION_BYTES_PER_TOKEN = 5
"""Bytes of a file of conversations per token, with the keys and quotes of its JSON: 4.7 to 5.1 for Alpaca,
Glaive, OASST and SGD in tokens of GPT-2; 7.6 for a file with indented lines."""
SPECIAL_TOKENS = 2
"""Number of special tokens of a text: one at its beginning, one at its end."""
MAX_FILES = 10_000
HEADED = (".csv", ".tsv")
TRAINING_FILE = re.compile(r"train(ing)?([-_.\s]|$)")
MAX_FILES_MIB = 256
BLOCK_BYTES = 1 << 20


def epoch_size(config: RunConfig) -> EpochSize | None:
    """Estimate the size of an epoch from local training files, or return None if that is not possible.

    Lines are counted only if `trainer.max_epochs` is set and each of them is one labelled text.
    """
    if spec_of(config).is_self_supervised:
        return _pretraining_epoch_size(config)
    num_texts, bytes_each = _count_training_texts(config.dataset) if _rows_are_texts(config) else (0, 0.0)
    if num_texts < 1:
        return None
    rows, length = config.trainer.per_device_train_batch_size, max_row_length(config)
    if not config.datacollator.pack_sequences:
        return EpochSize(math.ceil(num_texts / rows), f"{num_texts:,} texts in batches of {rows}")
    tokens = min(math.ceil(bytes_each / BYTES_PER_TOKEN) + SPECIAL_TOKENS, length)
    estimated = f"from {bytes_each:,.0f} bytes per row at {BYTES_PER_TOKEN} bytes per token"
    return EpochSize(
        math.ceil(num_texts * tokens / (rows * length * PACKED_FILL)),
        f"{num_texts:,} texts of about {tokens} tokens, {estimated}, packed into {rows} x {length}",
    )


def _pretraining_epoch_size(config: RunConfig) -> EpochSize | None:
    """Estimate the size of an epoch from the bytes of the training files; None if these are unknown."""
    num_bytes = _text_bytes(config) if _reads_whole_files(config.dataset) else 0
    if num_bytes < 1:
        return None
    held_out = _held_out_share(config.dataset)
    trained = 1 - (held_out or 0.0)
    length = max_row_length(config)
    row = length * microbatch_fill(config, length).value
    bytes_each = CONVERSATION_BYTES_PER_TOKEN if spec_of(config).stores_targets else BYTES_PER_TOKEN
    whole = num_bytes / bytes_each
    tokens = whole * trained
    source = f"about {tokens:,.0f} tokens, from {num_bytes:,} bytes at {bytes_each} bytes per token"
    if trained < 1:
        source += f", {percent(trained)} of them for training"
    num_microbatches = max(1, math.ceil(tokens / (row * config.trainer.per_device_train_batch_size)))
    return EpochSize(num_microbatches, source, None if held_out is None else whole * held_out)


def _held_out_share(dataset: DatasetConfig) -> float | None:
    """Return dataset.validation_split, or None if another key decides which text is held out."""
    is_share = dataset.eval_split is None and dataset.eval_samples is None
    return dataset.validation_split if is_share else None


def _reads_whole_files(dataset: DatasetConfig) -> bool:
    is_local = bool(dataset.path) and not dataset.mixture and not dataset.streaming
    return is_local and "[" not in dataset.train_split


def _text_bytes(config: RunConfig) -> int:
    paths = [os.path.abspath(os.path.expanduser(path)) for path in corpus_paths(config.dataset)]
    states = [os.stat(path) for path in paths if os.path.exists(path)]
    state = tuple((each.st_size, each.st_mtime_ns) for each in states)
    return _file_bytes(tuple(paths), state, spec_of(config).rows(config), config.dataset.train_split)


@lru_cache(maxsize=16)
def _file_bytes(
    paths: tuple[str, ...], _state: tuple[tuple[int, int], ...], rows: RowFormat, train_split: str
) -> int:
    """Return the total size of the training files in bytes; cached, because a command plans several times.

    Returns 0 if a file is compressed, Parquet or unreadable, or if there are more than `MAX_FILES`.
    """
    # `lint` should import few modules: most run files name no local text, or none that exists.
    from neobert.data.sources.file_listing import resolve_paths
    from neobert.data.sources.file_selection import select_files

    try:
        files = select_files(resolve_paths(paths), rows, is_plain).files
        files = [file for file in files if file.split == train_split]
        is_counted = len(files) <= MAX_FILES and all(is_plain(file.path) for file in files)
        return sum(file.path.stat().st_size for file in files) if is_counted else 0
    except (OSError, ProjectError):
        return 0


def _rows_are_texts(config: RunConfig) -> bool:
    spec = spec_of(config)
    is_text = spec.labels_texts and spec.texts(config) == 1
    return is_text and config.trainer.max_epochs is not None and _reads_whole_files(config.dataset)


def _count_training_texts(dataset: DatasetConfig) -> tuple[int, float]:
    """Count the training texts: lines of the files, minus headers and texts held out for evaluation.

    Returns their number, and the mean bytes of a row with all its columns. Both are 0 if a file is
    compressed, Parquet or unreadable, or if the files exceed `MAX_FILES_MIB`.
    """
    path = Path(os.path.expanduser(str(dataset.path)))
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        files = [file for file in files if file == path or TRAINING_FILE.match(file.name.lower())]
        states = [file.stat() for file in files]
        is_too_large = sum(state.st_size for state in states) > MAX_FILES_MIB * BYTES_PER_MIB
        if is_too_large or any(file.suffix not in ROWS_IN_LINES for file in files):
            return 0, 0.0
        num_lines = sum(
            _count_lines(file, state.st_size, state.st_mtime_ns)
            for file, state in zip(files, states, strict=True)
        )
    except OSError:
        return 0, 0.0
    num_headers = sum(file.suffix in HEADED for file in files) if dataset.column_names is None else 0
    num_texts = num_lines - num_headers
    bytes_each = sum(state.st_size for state in states) / max(1, num_lines)
    if files == [path] and dataset.eval_split is None:
        num_texts -= dataset.eval_samples or round(num_texts * (dataset.validation_split or 0.0))
    return num_texts, bytes_each


@lru_cache(maxsize=16)
def _count_lines(file: Path, _size: int, _changed_ns: int) -> int:
    """Count the lines of a file, cached by path, size and modification time."""
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(BLOCK_BYTES), b""))
