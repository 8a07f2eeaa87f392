"""Files of a task in a local copy of the data, rewritten as JSON lines that a run reads.

A quote in a TSV file is a character, a byte order mark is dropped, and a first line that names no column of
the task is data. Rows without a gold label, or with another number of fields, are left out and counted.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from neobert.atomic_write import write_atomically
from neobert.data.sources.lines import line_pieces, whole_lines
from neobert.data.sources.rows import RowFormat, text_digest
from neobert.data.sources.table_rows import PARQUET, rows_of
from neobert.data.sources.text_files import kind_of, opened
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.glue.tasks import GlueTask
from neobert.printable import printable

CODE = "glue-files"
TRAIN = re.compile(r"(sample_)?train([-_.]|$)")
DEV = (
    re.compile(r"(dev|validation|valid)(_matched)?[-.]"),
    re.compile(r"(sample_)?(heldout|held_out)[-_.]"),
)
"""Names of a development set, the published one first."""
SPLITS = ("train", "dev")
NO_GOLD_LABEL = ("-", "-1", "")
_SPACE = re.compile(r"\s+")


@dataclass(slots=True)
class Split:
    """Rows of a split as JSON lines, and what was left out."""

    source: str
    lines: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    num_malformed: int = 0
    num_unlabelled: int = 0

    def as_json(self) -> dict[str, Any]:
        """Describe the split."""
        return {
            "source": self.source,
            "rows": len(self.lines),
            "malformed": self.num_malformed,
            "unlabelled": self.num_unlabelled,
            **({"labels": dict(sorted(self.labels.items()))} if self.labels else {}),
        }


def prepare_task(task: GlueTask, data: Path, output: Path) -> dict[str, Any]:
    """Write train.jsonl and dev.jsonl of a task to a folder, and return their counts and their overlap.

    Raises `ProjectError` where a split is missing or a label is not one of the task.
    """
    splits = {name: _read(task, path, data) for name, path in zip(SPLITS, _files(task, data), strict=True)}
    seen = set(splits["train"].keys)
    report = {name: split.as_json() for name, split in splits.items()}
    report["dev"]["in_train"] = sum(key in seen for key in splits["dev"].keys)
    output.mkdir(parents=True, exist_ok=True)
    digests = []
    for name, split in splits.items():
        content = b"".join(split.lines)
        digests.append(sha256(content).hexdigest())
        path = output / f"{name}.jsonl"
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)
    return {**report, "digest": sha256("".join(digests).encode()).hexdigest()}


def _files(task: GlueTask, data: Path) -> tuple[Path, Path]:
    folders = [
        folder
        for folder in sorted(data.iterdir() if data.is_dir() else [])
        if folder.is_dir() and re.sub(r"_sample$", "", folder.name.lower()) in task.folders
    ]
    # A folder of the whole data comes before one of a sample: their names begin the same way.
    files = [file for folder in folders for file in sorted(folder.iterdir()) if _is_table(file, task)]
    train = next((file for file in files if TRAIN.match(file.name)), None)
    dev = next((file for name in DEV for file in files if name.match(file.name)), None)
    if train is None or dev is None:
        missing = " or ".join(name for name, path in zip(SPLITS, (train, dev), strict=True) if path is None)
        raise ProjectError(
            CODE,
            f"task {task.name} has no {missing} file in a folder {' or '.join(task.folders)}",
            "put train and dev files (.tsv, .jsonl, .json, .parquet) there, or name other tasks in --tasks",
            str(data),
            EXIT_USAGE,
        )
    return train, dev


def _is_table(path: Path, task: GlueTask) -> bool:
    kind = kind_of(path)
    return path.is_file() and kind is not None and (kind != ".txt" or bool(task.headless))


def _read(task: GlueTask, path: Path, data: Path) -> Split:
    split = Split(str(path.relative_to(data)))
    columns: dict[str, str] = {}
    for place, row in _rows(path, task, split):
        columns = columns or _columns(task, row, place)
        if any(row.get(column) is None for column in columns.values()):
            split.num_malformed += 1
            continue
        label = _label(task, row[columns["label"]], place)
        if label is None:
            split.num_unlabelled += 1
            continue
        texts = {name: str(row[column]) for name, column in columns.items() if name != "label"}
        split.lines.append(json.dumps({**texts, "label": label}, ensure_ascii=False).encode() + b"\n")
        split.keys.append(text_digest("\x1f".join(map(_normalized, texts.values()))))
        if isinstance(label, str):
            split.labels[label] = split.labels.get(label, 0) + 1
    if not split.lines:
        raise ProjectError(CODE, "has no labelled rows", "use a file with labelled rows", str(path))
    return split


def _normalized(text: str) -> str:
    return _SPACE.sub(" ", text).strip().casefold()


def _columns(task: GlueTask, row: Mapping[str, Any], place: str) -> dict[str, str]:
    wanted = {"text": task.text, "label": task.label} | ({"pair": task.pair} if task.pair else {})
    chosen = {name: next((each for each in names if each in row), None) for name, names in wanted.items()}
    for name, column in chosen.items():
        if column is None:
            raise ProjectError(
                CODE,
                f"no {name} column for task {task.name} (expected: {', '.join(wanted[name])})",
                f"columns are {printable(', '.join(map(str, row)))}",
                place,
            )
    return {name: str(column) for name, column in chosen.items()}


def _label(task: GlueTask, value: object, place: str) -> str | float | None:
    """Return a score, or the name of a class; None for a row without a gold label."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    if text in NO_GOLD_LABEL:
        return None
    if task.is_regression:
        try:
            return float(text)
        except ValueError:
            raise ProjectError(CODE, f"score {printable(text)!r} is not a number", place=place) from None
    if text in task.labels:
        return text
    if text.isdecimal() and int(text) < len(task.labels):
        return task.labels[int(text)]
    known = f"{', '.join(task.labels)}, or 0 to {len(task.labels) - 1}"
    message = f"label {printable(text)!r} is unknown (labels: {known})"
    raise ProjectError(CODE, message, f"check the file of task {task.name}", place)


def _rows(path: Path, task: GlueTask, split: Split) -> Iterator[tuple[str, Mapping[str, Any]]]:
    kind = kind_of(path)
    with opened(path, seekable=kind == PARQUET) as handle:
        if kind in (".tsv", ".txt"):
            yield from _tsv_rows(whole_lines(line_pieces(handle, path), path), path, task, split)
        elif kind == PARQUET:
            import pyarrow.parquet as pq

            for number, row in enumerate(pq.read_table(handle).to_pylist(), 1):
                yield f"{path}, row {number}", row
        elif kind == ".json":
            yield from _json_rows(handle.read(), path)
        else:
            yield from rows_of(handle, path, str(kind), RowFormat(()))


def _json_rows(content: bytes, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of one object of objects, `{"0": {...}, "1": {...}}`, else as other readers do."""
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and whole and all(isinstance(row, dict) for row in whole.values()):
        for number, row in whole.items():
            yield f"{path}, object {number}", row
    else:
        yield from rows_of(io.BytesIO(content), path, ".json", RowFormat(()))


def _tsv_rows(
    lines: Iterator[tuple[int, str]], path: Path, task: GlueTask, split: Split
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    header: Sequence[str] | None = None
    for number, line in lines:
        fields = line.rstrip("\r\n").split("\t")
        if header is None:
            is_header = not {*fields}.isdisjoint(task.label) and not {*fields}.isdisjoint(task.text)
            header = fields if is_header else task.headless
            if is_header:
                continue
            if not header:
                names = ", ".join((*task.text, *task.label))
                message = f"the first line names no column of task {task.name}: {names}"
                raise ProjectError(CODE, message, "add the header line", f"{path}:1")
        if len(fields) != len(header):
            split.num_malformed += 1
            continue
        yield f"{path}:{number}", dict(zip(header, fields, strict=True))
