"""Sources of a task's rows: a folder in a local copy of the data, or a Hub dataset."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from neobert.config.text_formats import text_format
from neobert.data.sources.file_selection import refuse_two_formats
from neobert.data.sources.hub import hub_tables
from neobert.data.sources.lines import line_pieces, whole_lines
from neobert.data.sources.rows import RowFormat
from neobert.data.sources.text_files import open_decompressed, read_table
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.glue.task import GlueTask
from neobert.evaluation.glue.tasks import TASKS
from neobert.hub_names import is_hub_name
from neobert.printable import printable

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")
CODE = "glue-files"
Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""(location for messages, row by column) pairs; a line with a wrong number of fields has an empty row."""
TRAIN = re.compile(r"(sample_)?train([-_.]|$)")
DEV = (
    re.compile(r"(dev|validation|valid|val)(_matched)?([-.]|$)"),
    re.compile(r"(sample_)?(heldout|held_out)([-_.]|$)"),
)
"""Patterns of the names of a development set; the published set comes first."""
PATTERNS = {"train": (TRAIN,), "dev": DEV}
SAMPLE = re.compile(r"_sample$")
"""Suffix of the name of a folder with a sample of a task's data."""
SHARD = re.compile(r"-\d{5}(?=-of-\d{5})")
"""Number of a shard in the name of its file."""
LOCAL = "put train and dev files (.tsv, .jsonl, .json, .csv, .parquet) in a folder per task"
_tables = lru_cache(hub_tables)
SPLIT = "split"
"""Column that names the split of a row, in a file that holds several."""


@dataclass(frozen=True, slots=True)
class SplitPart:
    """A source of the rows of a split, with the columns of a task.

    Attributes:
        label: name of the source in reports.
        split: train or dev; rows of other splits in the same file are skipped.
    """

    task: GlueTask
    split: str
    label: str
    read: Callable[[], Rows]

    def rows(self) -> Rows:
        """Yield (location for messages, row), without rows of other splits."""
        for location, row in self.read():
            if _standard_split_name(row.get(SPLIT, self.split)) == self.split:
                yield location, row


def split_parts(task: GlueTask, data: str) -> dict[str, list[SplitPart]]:
    """Return the sources of each split of a task, train and dev; a task without files has those of its parts.

    Args:
        data: a folder with one subfolder per task, or the name or a local copy of a Hub dataset.

    Raises `ProjectError` if a split is missing, or if several names match one split.
    """
    folder = Path(data)
    found = (
        _hub_parts(task, data) if is_hub_name(data) or is_hub_copy(folder) else _folder_parts(task, folder)
    )
    if task.parts and not any(found.values()):
        parts = [split_parts(TASKS[name], data) for name in task.parts]
        return {split: [each for part in parts for each in part[split]] for split in found}
    missing = [split for split, parts in found.items() if not parts]
    if missing:
        raise ProjectError(
            CODE,
            f"task {task.name} has no {' or '.join(missing)} file in a folder {' or '.join(task.folders)}",
            f"{LOCAL}, or name other tasks in --tasks",
            data,
            EXIT_USAGE,
        )
    return found


def is_hub_copy(folder: Path) -> bool:
    """Return whether a folder is a copy of a Hub dataset repository: its README.md lists `configs`."""
    card = folder / "README.md"
    if not card.is_file():
        return False
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    end = lines.index("---", 1) if lines[:1] == ["---"] and "---" in lines[1:] else 0
    return any(line.startswith("configs:") for line in lines[:end])


def _hub_parts(task: GlueTask, data: str) -> dict[str, list[SplitPart]]:
    hint = f"use a local folder: {LOCAL}"
    tables = _tables(data, task.folders, hint)

    def part(split: str, name: str) -> SplitPart:
        label = f"{data}, {name}"
        return SplitPart(task, split, label, partial(_table_rows, tables[name], label, task))

    found = {}
    for split, patterns in PATTERNS.items():
        names = _first_matches(patterns, tables, str)
        if len(names) > 1:
            raise _ambiguous_names_error(
                task, f"{split} splits", names, f"{hint}, with one {split} file", data
            )
        found[split] = [part(split, name) for name in names]
    return found


def _table_rows(table: Dataset, label: str, task: GlueTask) -> Rows:
    """Yield the rows of a table, with class names for class numbers: datasets number classes differently."""
    names = {
        column: feature.names
        for column, feature in table.features.items()
        if {str(name).casefold() for name in getattr(feature, "names", None) or ()} == {*task.labels}
    }
    for number, row in enumerate(table, 1):
        # Rows without a gold label have -1 or null.
        classes = {column: -1 if row[column] is None else row[column] for column in names}
        named = {column: names[column][value] for column, value in classes.items() if value >= 0}
        yield f"{label}, row {number}", {**row, **named}


def _standard_split_name(name: Any) -> str | None:
    """Return train or dev for the name of a split or file; None for another split."""
    if TRAIN.match(str(name)):
        return "train"
    return "dev" if any(pattern.match(str(name)) for pattern in DEV) else None


def _folder_parts(task: GlueTask, data: Path) -> dict[str, list[SplitPart]]:
    folders = [
        folder
        for folder in sorted(data.iterdir() if data.is_dir() else [])
        if folder.is_dir() and SAMPLE.sub("", folder.name.lower()) in task.folders
    ]
    files = [file for folder in folders for file in sorted(folder.iterdir()) if _is_table(file, task)]
    refuse_two_formats(file for file in files if _standard_split_name(file.name))
    found = {split: _split_files(task, split, files, data) for split in PATTERNS}
    if not any(found.values()) and len(files) == 1:
        found = dict.fromkeys(found, files)
    return {
        split: [
            SplitPart(task, split, str(file.relative_to(data)), partial(_file_rows, file, task))
            for file in chosen
        ]
        for split, chosen in found.items()
    }


def _split_files(task: GlueTask, split: str, files: Sequence[Path], data: Path) -> list[Path]:
    """Return the file of a split or its shards, or no files; a sample is used only if nothing else matches.

    Raises `ProjectError` if several names match: reading the first would train on a part of the data.
    """
    matches = _first_matches(PATTERNS[split], files, lambda file: file.name)
    matches = [file for file in matches if not SAMPLE.search(file.parent.name.lower())] or matches
    if len({file.with_name(SHARD.sub("", file.name)) for file in matches}) > 1:
        names = [str(file.relative_to(data)) for file in matches]
        hint = "keep one of the names: remove or rename the other files (shards: NAME-00000-of-00002)"
        raise _ambiguous_names_error(task, f"{split} files", names, hint, str(data))
    return matches


def _first_matches(
    patterns: Iterable[re.Pattern[str]], items: Iterable[T], name: Callable[[T], str]
) -> list[T]:
    matches = ([item for item in items if pattern.match(name(item))] for pattern in patterns)
    return next(filter(None, matches), [])


def _ambiguous_names_error(
    task: GlueTask, kind: str, names: Sequence[str], hint: str, data: str
) -> ProjectError:
    message = f"task {task.name} has several {kind}: {printable(', '.join(names))}"
    return ProjectError(CODE, message, hint, data, EXIT_USAGE)


def _is_table(path: Path, task: GlueTask) -> bool:
    kind = text_format(path)
    return path.is_file() and kind is not None and (kind != ".txt" or bool(task.headless))


def _file_rows(path: Path, task: GlueTask) -> Rows:
    """Yield the rows of a file in any supported format. Raises `ProjectError` for a malformed file.

    Quotes in TSV files are ordinary characters, a byte order mark is dropped, and a first line without a
    column name of the task is data.
    """
    if text_format(path) in (".tsv", ".txt"):
        with open_decompressed(path) as handle:
            yield from _tsv_rows(whole_lines(line_pieces(handle, path), path), path, task)
    else:
        yield from _json_object_rows(path) or read_table(path)


def _json_object_rows(path: Path) -> Rows | None:
    """Return the values of a JSON file `{"0": {...}, "1": {...}}` as rows; None for any other file."""
    if text_format(path) != ".json":
        return None
    try:
        with open_decompressed(path) as handle:
            whole = json.load(handle)
    except (ValueError, RecursionError):
        return None
    if not isinstance(whole, dict) or not whole or not all(isinstance(row, dict) for row in whole.values()):
        return None
    return ((f"{path}, object {number}", row) for number, row in whole.items())


def _tsv_rows(lines: Iterator[tuple[int, str]], path: Path, task: GlueTask) -> Rows:
    header: Sequence[str] | None = None
    for number, line in lines:
        fields = line.rstrip("\r\n").split("\t")
        if header is None:
            is_header = not {*fields}.isdisjoint(task.label) and not {*fields}.isdisjoint(task.text)
            header = fields if is_header else task.headless
            RowFormat(()).refuse_repeated_columns(header, f"{path}:1")
            if is_header:
                continue
            if not header:
                names = ", ".join((*task.text, *task.label))
                message = f"the first line does not name the columns of task {task.name} (expected: {names})"
                raise ProjectError(CODE, message, "add the header line", f"{path}:1")
        is_whole = len(fields) == len(header)
        yield f"{path}:{number}", dict(zip(header, fields, strict=True)) if is_whole else {}
