"""Preparation of a task's files: rows of any source, written as the JSON lines that a run reads.

Rows without a gold label, or with a wrong number of fields, are skipped and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from neobert.atomic_write import write_atomically
from neobert.data.sources.rows import BETWEEN_TEXTS, describe_kind, text_digest, without_whitespace_and_case
from neobert.errors import ProjectError
from neobert.evaluation.glue.sources import CODE, SplitPart, split_parts
from neobert.evaluation.glue.task import GlueTask
from neobert.plurals import counted
from neobert.printable import printable

NO_GOLD_LABEL = ("-", "-1", "")


@dataclass(slots=True)
class Split:
    """Labelled rows of a split as JSON lines, a digest of each row's texts, and counts of skipped rows."""

    source: str
    lines: list[bytes] = field(default_factory=list)
    text_digests: list[bytes] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    num_malformed: int = 0
    num_unlabelled: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the source and the row counts as JSON values; if labels are classes, also rows per class."""
        return {
            "source": self.source,
            "rows": len(self.lines),
            "malformed": self.num_malformed,
            "unlabelled": self.num_unlabelled,
            **({"labels": dict(sorted(self.labels.items()))} if self.labels else {}),
        }


def prepare_task(task: GlueTask, data: str | Path, output: Path) -> dict[str, Any]:
    """Write train.jsonl and dev.jsonl of a task to a folder; return their row counts, and a digest.

    The count `in_train` is the number of development rows that are also in the training set.

    Args:
        data: a folder with a folder per task, or the name of a dataset on the Hub.

    Raises `ProjectError` if a split is missing or a row is invalid.
    """
    splits = {name: _read_split(parts) for name, parts in split_parts(task, str(data)).items()}
    seen = set(splits["train"].text_digests)
    report = {name: split.as_json() for name, split in splits.items()}
    report["dev"]["in_train"] = sum(digest in seen for digest in splits["dev"].text_digests)
    output.mkdir(parents=True, exist_ok=True)
    digests = []
    for name, split in splits.items():
        content = b"".join(split.lines)
        digests.append(sha256(content).hexdigest())
        path = output / f"{name}.jsonl"
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)
    return {**report, "digest": sha256("".join(digests).encode()).hexdigest()}


def _read_split(parts: Sequence[SplitPart]) -> Split:
    split = Split(", ".join(part.label for part in parts))
    for part in parts:
        _add_rows(split, part)
    if not split.lines:
        raise _no_rows_error(split, parts[0].task)
    return split


def _no_rows_error(split: Split, task: GlueTask) -> ProjectError:
    malformed = f"{counted(split.num_malformed, 'row')} with missing or extra fields"
    unlabelled = f"{counted(split.num_unlabelled, 'row')} without a label"
    skipped = [malformed] * bool(split.num_malformed) + [unlabelled] * bool(split.num_unlabelled)
    message = ", ".join(["the split has no labelled rows", *skipped])
    hint = "use a file with labelled rows"
    if task.headless:
        hint += f", with a header line or the columns {', '.join(task.headless)}"
    return ProjectError(CODE, message, hint, split.source)


def _add_rows(split: Split, part: SplitPart) -> None:
    task = part.task
    columns: dict[str, str] = {}
    for location, row in _expand_rows(part):
        if not row:
            split.num_malformed += 1
            continue
        columns = columns or _task_columns(task, row, location)
        if any(row.get(column) is None for name, column in columns.items() if name != "label"):
            split.num_malformed += 1
            continue
        label = _parse_label(task, row.get(columns["label"]), location)
        if label is None:
            split.num_unlabelled += 1
            continue
        texts = {
            name: _text_cell(row, column, location) for name, column in columns.items() if name != "label"
        }
        split.lines.append(json.dumps({**texts, "label": label}, ensure_ascii=False).encode() + b"\n")
        split.text_digests.append(
            text_digest(BETWEEN_TEXTS.join(map(without_whitespace_and_case, texts.values())))
        )
        if isinstance(label, str):
            split.labels[label] = split.labels.get(label, 0) + 1


def _expand_rows(part: SplitPart) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (location for messages, row with the columns of the task); a malformed line has an empty row.

    Raises `ProjectError` for a row that the task cannot convert.
    """
    expand = part.task.expand
    for location, row in part.rows():
        if expand is None or not row:
            yield location, row
            continue
        try:
            yield from ((location, each) for each in expand(row))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"missing key {error}" if isinstance(error, KeyError) else str(error)
            message = f"the line is not a row of task {part.task.name}: {printable(reason)}"
            columns = printable(", ".join(map(str, row)))
            hint = f"use rows in the published layout; the columns of this row are {columns}"
            raise ProjectError(CODE, message, hint, location) from None


def _task_columns(task: GlueTask, row: Mapping[str, Any], location: str) -> dict[str, str]:
    wanted = {"text": task.text, "label": task.label} | ({"pair": task.pair} if task.pair else {})
    chosen = {name: next((each for each in names if each in row), None) for name, names in wanted.items()}
    for name, column in chosen.items():
        if column is None:
            raise ProjectError(
                CODE,
                f"the file has no {name} column for task {task.name} (expected: {', '.join(wanted[name])})",
                f"add or rename the column; the file has {printable(', '.join(map(str, row)))}",
                location,
            )
    return {name: str(column) for name, column in chosen.items()}


def _text_cell(row: Mapping[str, Any], column: str, location: str) -> str:
    value = row[column]
    if isinstance(value, str):
        return value
    message = f"column {printable(column)!r} holds {describe_kind(value)}, not text"
    raise ProjectError(CODE, message, "write each text as one string", location)


def _parse_label(task: GlueTask, value: object, location: str) -> str | float | None:
    """Return the score or class name, or None if the row has no gold label. Raises `ProjectError`."""
    if value is None:
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    name = text.casefold()  # also of JSON's true and false
    if text in NO_GOLD_LABEL:
        return None
    if task.is_regression:
        return _parse_score(text, location)
    if name in task.labels:
        return name
    if text.isdecimal() and int(text) < len(task.labels):
        return task.labels[int(text)]
    known = f"{', '.join(task.labels)}, or 0 to {len(task.labels) - 1}"
    message = f"label {printable(text)!r} is unknown (labels: {known})"
    raise ProjectError(CODE, message, "correct the label, or remove the row", location)


def _parse_score(text: str, location: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if math.isfinite(score):
        return score
    hint = "write a finite number, or remove the row"
    raise ProjectError(CODE, f"score {printable(text)!r} is not a finite number", hint, location)
