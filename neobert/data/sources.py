"""The corpus that a config names: what to train on and what to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from neobert.config.schema import DatasetConfig
from neobert.data import python_docs
from neobert.data.hub_data import hub_splits, is_saved_dataset, saved_splits
from neobert.data.local_data import local_splits
from neobert.data.readers import HashShare, IndexedSource, Part, TextSource
from neobert.data.splits import SplitSlice, evaluation_split, parse_split
from neobert.errors import ProjectError


@dataclass(frozen=True)
class Corpus:
    """Training and evaluation documents.

    Attributes:
        label: where the text comes from, for messages.
        train: source of the training documents.
        evaluation: source of the evaluation documents, or None. Never overlaps `train`.
    """

    label: str
    train: TextSource
    evaluation: TextSource | None

    def __iter__(self) -> Iterator[str]:
        """Iterate over the training documents from the beginning."""
        return iter(self.train.open())

    def identity(self) -> Any:
        """Describe the content as JSON: equal means the same documents."""
        return {
            "train": self.train.identity(),
            "evaluation": self.evaluation.identity() if self.evaluation else None,
        }


def open_corpus(config: DatasetConfig) -> Corpus:
    """Open the text that a config names.

    Evaluation documents are, in this order: `eval_split`; a split named validation, eval, test or dev; the first
    `eval_samples` training documents; the `validation_split` share of the training documents, chosen by a hash of
    their text; none. With an evaluation split, `eval_samples` keeps its first documents only.
    Raises ProjectError DAT001 for what is missing or unreadable and DAT007 for columns.
    """
    splits = _splits(config)
    wanted = parse_split(config.train_split, "dataset.train_split")
    train = _documents(splits, wanted, config.streaming, "dataset.train_split")
    evaluation = _evaluation_of_its_own(splits, wanted, config)
    if evaluation is None:
        train, evaluation = _carved(train, config)
    return Corpus(train.label, train, evaluation)


def _splits(config: DatasetConfig) -> dict[str, TextSource]:
    if (config.path is None) == (config.name is None):
        state = "neither is set" if config.path is None else "both are set"
        raise ProjectError(
            "DAT001", f"one of path and name says where the text is; {state}", "set one", "dataset"
        )
    if config.path is not None:
        path = Path(config.path).expanduser()
        if is_saved_dataset(path):
            return saved_splits(path, config.text_column)
        return dict(local_splits(path, config.text_column))
    assert config.name is not None
    if config.name.startswith("builtin:"):
        return {"train": _builtin(config.name)}
    return hub_splits(config)


def _builtin(name: str) -> TextSource:
    if name != python_docs.NAME:
        raise ProjectError(
            "DAT001", f"there is no corpus {name!r}", f"use {python_docs.NAME}", "dataset.name"
        )
    documents = lru_cache(python_docs.python_docs)
    label = python_docs.python_docs_label()
    return IndexedSource(
        label,
        lambda start, stop: documents()[start:stop],
        lambda: len(documents()),
        lambda: [label, python_docs.interpreter_build()],
    )


def _documents(splits: dict[str, TextSource], wanted: SplitSlice, is_stream: bool, key: str) -> TextSource:
    if wanted.name not in splits:
        raise ProjectError(
            "DAT001", f"there is no split {wanted.name!r}", f"set {key} to one of: {', '.join(splits)}", key
        )
    source = splits[wanted.name]
    if wanted.is_whole:
        return source
    if wanted.needs_total and is_stream:
        raise ProjectError(
            "DAT001",
            "a stream has no known length, so a share of it cannot be taken",
            "give document numbers, as in train[:10000], or set dataset.streaming to false",
            key,
        )
    return Part(source, *wanted.resolve(source.count() if wanted.needs_total else None))


def _evaluation_of_its_own(
    splits: dict[str, TextSource], training: SplitSlice, config: DatasetConfig
) -> TextSource | None:
    name = config.eval_split or evaluation_split(tuple(splits), training.name)
    if name is None:
        return None
    key = "dataset.eval_split"
    source = _documents(splits, parse_split(name, key), config.streaming, key)
    return source if config.eval_samples is None else Part(source, 0, config.eval_samples)


def _carved(train: TextSource, config: DatasetConfig) -> tuple[TextSource, TextSource | None]:
    if config.eval_samples is not None:
        return Part(train, config.eval_samples, None), Part(train, 0, config.eval_samples)
    if config.validation_split is not None:
        share = config.validation_split
        return HashShare(train, share, is_evaluation=False), HashShare(train, share, is_evaluation=True)
    return train, None
