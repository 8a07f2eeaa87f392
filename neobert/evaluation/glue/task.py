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
        parts: tasks whose rows are combined if the data has no folder for this task.
        expand: converts a row of another layout to rows with the columns text, pair and label. Raises
            `LookupError`, `TypeError` or `ValueError` for an invalid row.
        text, pair, label: column names in the order of preference; an empty `pair` means single texts.
        headless: columns of a file without a header line.
        labels: names of the classes in the order of their numbers; empty if labels are scores.
        metrics: names of the metrics as the task's runs report them; their mean is the task's score, and
            the first one selects the best checkpoint.
        train_rows, dev_rows: sizes of the published splits.
        starts_from: task whose best checkpoint a transferred run starts from, or None.
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
        """Return whether labels are scores, and not classes."""
        return not self.labels


def has_published_size(rows: int, published: int) -> bool:
    """Return whether a split has the published number of rows, up to the relative difference `SAME_SIZE`."""
    return abs(rows - published) <= SAME_SIZE * published


def reasons_not_comparable(task: GlueTask, train_rows: int, dev_rows: int) -> list[str]:
    """Return a reason for each split whose size differs from the published one."""
    reasons = []
    if not has_published_size(train_rows, task.train_rows):
        reasons.append(f"the training set has {train_rows:,} texts (published: {task.train_rows:,})")
    if not has_published_size(dev_rows, task.dev_rows):
        reasons.append(f"the development set has {dev_rows:,} texts (published: {task.dev_rows:,})")
    return reasons
