"""Training and evaluation documents of the data that a config names."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from neobert.config.corpora import (
    BUILDER_NAMES,
    BUILTIN,
    TOKENIZER_OF_THE_IDS,
    USE_PATH,
    corpus_paths,
    file_format_message,
    list_corpora,
)
from neobert.config.schema import DatasetConfig
from neobert.data.sources import builtin_conversations, python_docs
from neobert.data.sources.file_digests import DescribeFile, describe_by_ends
from neobert.data.sources.file_listing import is_saved_dataset, resolve_paths
from neobert.data.sources.file_selection import TextFile, select_files
from neobert.data.sources.hub import hub_splits, saved_splits
from neobert.data.sources.parts import ConcatenatedSource, HashShare, SlicedSource, component_sources
from neobert.data.sources.prepared import joined_folder, prepared_splits
from neobert.data.sources.readers import FileSource, IndexedSource, TextSource
from neobert.data.sources.retries import RetryingReader
from neobert.data.sources.rows import Row, RowFormat, text_rows
from neobert.data.sources.splits import (
    EVALUATION_KEY,
    TRAIN_KEY,
    SplitSlice,
    head_slice,
    refuse_overlap,
    slice_without_head,
    splits_to_read,
)
from neobert.data.sources.token_shards import TokenText
from neobert.errors import ProjectError
from neobert.plurals import counted

Splits = Mapping[str, Callable[[], TextSource]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """Training and evaluation documents.

    Attributes:
        train: source of the training documents.
        evaluation: source of the evaluation documents, or None. No document is in both sources, but copies of
            its text may be, except with `validation_split`, which splits by the text. The report of `prepare`
            counts the copies.
        config: dataset config from which the corpus was opened.
    """

    train: TextSource
    evaluation: TextSource | None
    config: DatasetConfig

    @property
    def label(self) -> str:
        """Name of the data source, for messages."""
        return self.train.label

    def __iter__(self) -> Iterator[str]:
        """Iterate over the texts of the training rows. Raises DAT001 for token ids instead of text."""
        names = [field.name for field in self.train.rows.fields if field.is_text]
        for row in RetryingReader.from_config(self.train, self.config):
            if any(isinstance(row[name], TokenText) for name in names):
                message = "holds token ids, but a tokenizer is trained on text"
                raise ProjectError("DAT001", message, TOKENIZER_OF_THE_IDS, self.label)
            yield from (row[name] for name in names)

    def identity(self) -> Any:
        """Return a JSON-serializable description of the content; equal descriptions mean equal documents."""
        return {
            "train": self.train.identity(),
            "evaluation": self.evaluation.identity() if self.evaluation else None,
        }


def open_corpus(
    config: DatasetConfig,
    rows: RowFormat | None = None,
    describe: DescribeFile = describe_by_ends,
    plugged: Splits | None = None,
) -> Corpus:
    """Open the data that a config names.

    `rows` are the fields of the task, by default the text alone; `describe` identifies the content of a file;
    `plugged` are the splits of a plug-in, which replace the data that the config names.

    Evaluation documents come from the first of these that applies: `eval_split`; a split named validation,
    eval, test or dev; the first `eval_samples` training documents; the `validation_split` share of the
    training documents, chosen by a hash of their text; none. With an evaluation split,
    `eval_samples` keeps its first documents only. Joined parts have the splits with which they were prepared.

    Raises ProjectError DAT001 for missing or unreadable data, DAT006 for overlapping splits, DAT011 for
    missing or ambiguous columns, DAT013 for two data locations, none, or a file format as dataset.name, and
    DAT018 for a streamed mixture.
    """
    if config.mixture:
        return _open_mixture(config, rows or text_rows(config), describe)
    if (folder := joined_folder(config)) is not None:
        _check_one_data_source(config)
        prepared = prepared_splits(folder, rows or text_rows(config), config)
        return Corpus(prepared["train"], prepared.get("eval"), config)
    splits = plugged or _open_splits(config, rows or text_rows(config), describe)
    wanted, wanted_evaluation = splits_to_read(config, splits)
    train = _open_slice(splits, wanted, config, TRAIN_KEY)
    if wanted_evaluation is None:
        return Corpus(*_split_off_evaluation(train, config), config)
    evaluation = _open_slice(splits, wanted_evaluation, config, EVALUATION_KEY)
    if wanted.name == wanted_evaluation.name:
        first, second = (
            (each.start, each.stop) if isinstance(each, SlicedSource) else (0, None)
            for each in (train, evaluation)
        )
        refuse_overlap(first, second, f"{evaluation.label} and {train.label}")
    if config.eval_samples is not None:
        evaluation = SlicedSource(evaluation, head_slice(config.eval_samples))
    return Corpus(train, evaluation, config)


def with_evaluation_table(corpus: Corpus, path: str, rows: RowFormat, describe: DescribeFile) -> Corpus:
    """Put a table before the evaluation documents, because `trainer.eval_max_batches` may drop the last ones.

    Raises DAT001 unless the path is one table.
    """
    if not Path(os.path.expanduser(path)).is_file():
        raise ProjectError("DAT001", "is not a file", "correct the path", path)
    (table,) = (open_table() for open_table in _local_splits([path], rows, describe).values())
    others = () if corpus.evaluation is None else component_sources(corpus.evaluation)
    return replace(corpus, evaluation=ConcatenatedSource((table, *others)))


def _open_mixture(config: DatasetConfig, rows: RowFormat, describe: DescribeFile) -> Corpus:
    """Join the corpora of a mixture; each splits off its own evaluation documents.

    Raises DAT013 if a path or name is also set, DAT018 for a stream.
    """
    if config.path is not None or config.name is not None:
        key = "dataset.path" if config.path is not None else "dataset.name"
        raise ProjectError(
            "DAT013", f"{key} and dataset.mixture are both set", f"remove {key} or dataset.mixture", key
        )
    if config.streaming:
        message, hint = "dataset.mixture cannot be streamed", "set dataset.streaming to false"
        raise ProjectError("DAT018", message, hint, "dataset.streaming")
    corpora = [
        open_corpus(each, rows.with_text_column(each.text_column), describe) for each in list_corpora(config)
    ]
    evaluations = tuple(each.evaluation for each in corpora if each.evaluation is not None)
    train = ConcatenatedSource(tuple(each.train for each in corpora))
    return Corpus(train, ConcatenatedSource(evaluations) if evaluations else None, config)


def _open_splits(config: DatasetConfig, rows: RowFormat, describe: DescribeFile) -> Splits:
    _check_one_data_source(config)
    if config.path is not None:
        if not config.path:
            hint = "set dataset.path to a file or folder; a shell variable in dataset.path may be unset"
            raise ProjectError("DAT001", "is empty", hint, "dataset.path")
        paths = corpus_paths(config)
        path = Path(os.path.expanduser(paths[0]))
        if len(paths) == 1 and is_saved_dataset(path):
            return saved_splits(path, rows)
        return _local_splits(paths, rows, describe)
    assert config.name is not None
    if config.name.startswith(BUILTIN):
        return {"train": lambda: _builtin_source(str(config.name), rows)}
    if config.name in BUILDER_NAMES:
        raise ProjectError("DAT013", file_format_message(config.name), USE_PATH, "dataset.name")
    return hub_splits(config, rows)


@cache
def _warn_once(message: str) -> None:
    """Log a warning, once per process: a text is opened more than once."""
    log.warning("%s", message)


def _local_splits(paths: Sequence[str], rows: RowFormat, describe: DescribeFile) -> Splits:
    """Return a function that opens each split of files and folders, by split name."""
    places = resolve_paths(paths)
    selection = select_files(places, rows)
    for each in selection.left_out.values():
        if each.reason:
            _warn_once(str(each))
    label = ", ".join(paths)
    if len(places) == 1 and places[0].is_named and not places[0].path.is_dir():
        (file,) = selection.files
        return {file.split: lambda: FileSource(label, (file.path,), (file.name,), rows, describe)}
    members: dict[str, list[TextFile]] = {}
    for file in selection.files:
        members.setdefault(file.split, []).append(file)
    not_read = f"; not read: {others}" if (others := selection.describe_skipped_files()) else ""
    return {
        name: partial(
            FileSource,
            f"{label} ({name}, {counted(len(files), 'file')}{not_read})",
            tuple(file.path for file in files),
            tuple(file.name for file in files),
            rows,
            describe,
        )
        for name, files in sorted(members.items())
    }


def _check_one_data_source(config: DatasetConfig) -> None:
    """Raise DAT013 unless exactly one of dataset.path and dataset.name is set."""
    if config.path is None and config.name is None:
        hint = f"set dataset.path or dataset.name; dataset.name {python_docs.NAME} needs no file"
        message = "neither dataset.path nor dataset.name is set"
        raise ProjectError("DAT013", message, hint, "dataset")
    if config.path is not None and config.name is not None:
        message = (
            f"dataset.path {', '.join(corpus_paths(config))} and dataset.name {config.name} are both set"
        )
        raise ProjectError("DAT013", message, "remove dataset.path or dataset.name", "dataset.path")


@dataclass(frozen=True, slots=True)
class _BuiltinText:
    """Built-in text: its columns, and functions that return its rows, label and identity."""

    columns: tuple[str, ...]
    documents: Callable[[], Sequence[tuple[Any, ...]]]
    label: Callable[[], str]
    identity: Callable[[], Any]


_BUILTINS = {
    python_docs.NAME: _BuiltinText(
        python_docs.COLUMNS,
        python_docs.python_docs,
        python_docs.python_docs_label,
        lambda: [python_docs.python_docs_label(), python_docs.interpreter_build()],
    ),
    builtin_conversations.NAME: _BuiltinText(
        builtin_conversations.COLUMNS,
        builtin_conversations.conversation_rows,
        lambda: builtin_conversations.LABEL,
        lambda: [builtin_conversations.NAME, builtin_conversations.VERSION],
    ),
    builtin_conversations.PAIRS_NAME: _BuiltinText(
        builtin_conversations.PAIRS_COLUMNS,
        builtin_conversations.question_answer_pairs,
        lambda: f"{builtin_conversations.PAIRS_NAME} (149 questions with answers)",
        lambda: [builtin_conversations.PAIRS_NAME, builtin_conversations.VERSION],
    ),
}


def _builtin_source(name: str, rows: RowFormat) -> TextSource:
    if name not in _BUILTINS:
        hint = f"use {' or '.join(_BUILTINS)}"
        raise ProjectError("DAT001", f"unknown corpus {name!r}", hint, "dataset.name")
    text = _BUILTINS[name]
    columns = rows.columns(dict.fromkeys(text.columns), name)
    documents = lru_cache(text.documents)

    def fetch(start: int, stop: int) -> list[Row]:
        named = (dict(zip(text.columns, each, strict=True)) for each in documents()[start:stop])
        return [rows.row(values, columns, name) for values in named]

    return IndexedSource(text.label(), fetch, lambda: len(documents()), text.identity, rows)


def _open_slice(splits: Splits, wanted: SplitSlice, config: DatasetConfig, key: str) -> TextSource:
    source = splits[wanted.name]()
    if wanted.is_whole:
        return source
    if wanted.needs_total and config.streaming:
        raise ProjectError(
            "DAT001",
            "a stream has an unknown length, so its slices cannot use percentages or negative numbers",
            "use document numbers, such as train[:10000], or set dataset.streaming to false",
            key,
        )
    return SlicedSource(source, wanted)


def _split_off_evaluation(train: TextSource, config: DatasetConfig) -> tuple[TextSource, TextSource | None]:
    if config.eval_samples is not None:
        return SlicedSource(train, slice_without_head(config.eval_samples)), SlicedSource(
            train, head_slice(config.eval_samples)
        )
    if config.validation_split is not None:
        share = config.validation_split
        return HashShare(train, share, is_evaluation=False), HashShare(train, share, is_evaluation=True)
    return train, None
