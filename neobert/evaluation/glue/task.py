"""Description of a GLUE-style task, and its comparability with published scores. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FIRST = ("sentence1", "premise", "text_a", "text", "anchor")
SECOND = ("sentence2", "hypothesis", "text_b", "text_pair", "pair")
SAME_SIZE = 0.002
"""Relative difference up to which two sizes are the same: mirrors drop a few malformed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """A task with labelled texts or pairs.

    Attributes:
        folders: names of its folder in a copy of the data, or of its configuration on the Hub, in lower case.
        parts: tasks whose rows it consists of where the data has no folder of its own.
        expand: makes the columns text, pair and label of a row that has others; a row may give several.
            Raises `LookupError`, `TypeError` or `ValueError` for a row of another layout.
        text, pair, label: names of the columns, in the order of preference; no pair: single texts.
        headless: columns of a file without a header line.
        labels: names of the classes in the order of their numbers; empty: scores.
        metrics: of the evaluation, as the task's runs report them; their mean is the task's score, the first
            one selects the best checkpoint.
        train_rows, dev_rows: sizes of the published splits.
        starts_from: task whose best checkpoint a transferred run starts from.
        max_length: longest text or pair in tokens.
    """

    name: str
    folders: tuple[str, ...]
    text: tuple[str, ...]
    pair: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    headless: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...]
    train_rows: int
    dev_rows: int
    epochs: int
    starts_from: str | None = None
    max_length: int = 128
    parts: tuple[str, ...] = ()
    expand: Callable[[Mapping[str, Any]], Iterator[Mapping[str, Any]]] | None = None

    @property
    def is_regression(self) -> bool:
        """Return whether labels are scores."""
        return not self.labels


def is_whole(rows: int, published: int) -> bool:
    """Return whether a split has the size of the published one."""
    return abs(rows - published) <= SAME_SIZE * published


def reasons_not_comparable(task: GlueTask, train_rows: int, dev_rows: int) -> list[str]:
    """Return why scores on these files are not comparable with published ones; empty if they are."""
    reasons = []
    if not is_whole(train_rows, task.train_rows):
        reasons.append(f"training set of {train_rows:,} texts, the published one has {task.train_rows:,}")
    if not is_whole(dev_rows, task.dev_rows):
        reasons.append(f"development set of {dev_rows:,} texts, the published one has {task.dev_rows:,}")
    return reasons
