"""Selection of the files to read, and what is left out with the reason.

A file belongs to the split that its name starts with (`train-00001.parquet`, `valid.txt.gz`) or that one of
its folders is named after (`test/part.jsonl`); every other file is training text.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from neobert.config.text_formats import (
    COMPRESSIONS,
    MARKDOWN,
    READABLE,
    READABLE_TABLES,
    TABLES,
    TEXT,
    TOKEN_IDS,
    WITH_TOKEN_IDS,
    hint_for_plain_text,
    text_format,
    uncompressed_suffix,
    without_suffixes,
)
from neobert.data.sources.file_listing import (
    EMPTY,
    PREPARED,
    InputPath,
    is_saved_dataset,
    list_files,
    unreadable_kind,
)
from neobert.data.sources.rows import TEXT_OPTION, RowFormat
from neobert.data.sources.splits import ALIASES
from neobert.data.sources.unreadable import conversion_to_text, unreadable_error
from neobert.errors import ProjectError
from neobert.runfiles.prepared_parts import is_joined

TRAIN = "train"
ALREADY_READ = "link to a file that is read"
HIDDEN = "hidden file"
DESCRIPTIONS = ("readme", "license", "licence", "changelog", "contributing")
"""Names of Markdown files that describe a folder and are not part of its text."""
_HOLDS_PREPARED = "holds prepared data, not text files"
_IN_A_MIXTURE = "list these files in dataset.mixture, with a text_column of their own"
_ALONE = f"pass these files on their own, with {TEXT_OPTION}"


class TextFile(NamedTuple):
    """A file to read: its path, its name below the path that is read, and its split."""

    path: Path
    name: str
    split: str


class SkippedFiles(NamedTuple):
    """Files that are not read for one reason.

    Attributes:
        kind: format and compression suffixes, the name of a file without a suffix, or what the file is.
        example: name of the first of the files.
        reason: why the text in these files is not read; empty for files that hold no text.
        hint: edit or command that makes the text readable; empty without a reason.
    """

    kind: str
    example: str
    reason: str = ""
    hint: str = ""
    num_files: int = 1

    def __str__(self) -> str:
        """Return the number and kind of the files, the first of them, the reason and a hint to read them."""
        return f"not read: {self.num_files:,} x {self.kind} ({self.example}: {self.reason}); {self.hint}"


@dataclass(frozen=True, slots=True)
class FileSelection:
    """Files to read, and files that are left out by kind and reason."""

    files: list[TextFile] = field(default_factory=list)
    left_out: dict[tuple[str, str], SkippedFiles] = field(default_factory=dict)

    def skip_file(self, file: TextFile, kind: str, reason: str = "", hint: str = "") -> None:
        """Record a file that is not read; files of one kind and reason are counted together.

        Only the first hint of a kind and reason is kept.
        """
        known = self.left_out.get((kind, reason))
        known = known or SkippedFiles(kind, file.name, reason, hint, num_files=0)
        self.left_out[kind, reason] = known._replace(num_files=known.num_files + 1)

    def describe_skipped_files(self) -> str:
        """Return the five most frequent kinds of files that are not read, such as `2 x .html, 1 x .csv`."""
        counts: Counter[str] = Counter()
        for each in self.left_out.values():
            counts[each.kind] += each.num_files
        # By kind too, so that the order of a folder's listing does not matter.
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count} x {kind}" for kind, count in ranked[:5])

    def no_readable_file_error(self, root: Path, rows: RowFormat) -> ProjectError:
        """Return DAT001 for a folder without a readable file, with a hint for the first kind that has one."""
        ways = (each.hint for each in self.left_out.values() if each.hint)
        seen = self.describe_skipped_files() or "nothing"
        if not rows.is_plain_text:
            message = f"has no table in a supported format ({READABLE_TABLES}); found {seen}"
            texts = (root / each.example for each in self.left_out.values() if each.kind.startswith(TEXT))
            hint = "set dataset.path to a table, or to a folder with tables"
            return unreadable_error(root, message, next(map(hint_for_plain_text, texts), hint))
        message = f"has no file in a supported format ({READABLE}); found {seen}"
        return unreadable_error(root, message, next(ways, "set dataset.path to a folder with text"))


def select_files(
    input_paths: Sequence[InputPath], rows: RowFormat, can_open: Callable[[Path], bool] = lambda _: True
) -> FileSelection:
    """Select the files to read in files and folders.

    Plain text is not read if the task needs several columns. Next to other text, tables are read only if they
    have the column of the text: without it they usually describe the text.

    Args:
        can_open: whether a table may be opened to look for the column; otherwise it counts as text.

    Raises DAT001 without a readable file, DAT004 for an empty file that is named.
    """
    selection = FileSelection()
    for input_path in input_paths:
        num_before = len(selection.files)
        _refuse_other_folder(input_path.path, is_alone=len(input_paths) == 1)
        if input_path.is_named and not input_path.path.is_dir():
            check_file(input_path.path)
            selection.files.append(_build_text_file(input_path.path, input_path.base))
            continue
        paths = list_files(input_path.path) if input_path.path.is_dir() else (input_path.path,)
        for path in paths:
            _add_or_skip(_build_text_file(path, input_path.base), rows, selection)
        if input_path.is_named and len(selection.files) == num_before:
            raise selection.no_readable_file_error(input_path.path, rows)
    if not selection.files:
        raise selection.no_readable_file_error(input_paths[0].base, rows)
    selection.files[:] = _without_duplicates(selection)
    if rows.is_plain_text:
        selection.files[:] = _without_textless_tables(selection, rows, can_open)
    refuse_two_formats(file.path for file in selection.files)
    if len(selection.files) == len(input_paths) == 1 and selection.files[0].path == input_paths[0].path:
        selection.files[0] = selection.files[0]._replace(split=TRAIN)
    return selection


def _refuse_other_folder(path: Path, *, is_alone: bool) -> None:
    """Raise DAT001 for a folder of prepared data, and for a saved dataset that is not alone."""
    if is_joined(path):
        hint = "set dataset.path to this folder alone, or to folders with text"
        raise unreadable_error(path, _HOLDS_PREPARED, hint)
    if all((path / name).is_file() for name in PREPARED):
        hint = f"set dataset.cache_dir to {path}, and dataset.path to its original text"
        raise unreadable_error(path, _HOLDS_PREPARED, hint)
    if is_saved_dataset(path) and not is_alone:
        hint = "list this folder and the other paths in dataset.mixture"
        raise unreadable_error(path, "is a saved dataset, which cannot be combined with other paths", hint)


def check_file(path: Path) -> None:
    """Raise DAT001 for a file that is not regular or not in a supported format, DAT004 for an empty one."""
    if not path.is_file():
        raise unreadable_error(path, "is not a regular file", "set dataset.path to a file or folder")
    if text_format(path) is None:
        message, hint = conversion_to_text(uncompressed_suffix(path), path) or (
            f"is not in a supported format ({READABLE})",
            "convert the file to .jsonl or .txt, or correct its suffix",
        )
        raise unreadable_error(path, message, hint)
    if path.stat().st_size == 0:
        raise ProjectError("DAT004", "is empty", "set dataset.path to a file with text", str(path))


def refuse_two_formats(files: Iterable[Path]) -> None:
    """Raise DAT001 for files that differ in format or compression only, such as train.jsonl and train.tsv.

    One is usually a copy of the other: reading both would repeat each text, and it is unknown which to skip.
    """
    seen: dict[Path, Path] = {}
    for file in files:
        other = seen.setdefault(without_suffixes(file), file)
        if other != file:
            message = f"holds both {other.name} and {file.name}, which differ only in format"
            hint = f"remove {other.name} or {file.name}, or rename {file.name}"
            raise unreadable_error(file.parent, message, hint)


def _build_text_file(path: Path, base: Path) -> TextFile:
    relative = path.relative_to(base)
    return TextFile(path, relative.as_posix(), _split_name(relative))


def _split_name(relative: Path) -> str:
    for folder in relative.parts[:-1]:
        if folder.lower() in ALIASES:
            return ALIASES[folder.lower()]
    return ALIASES.get(re.split(r"[-_.\s]", relative.name.lower(), maxsplit=1)[0], TRAIN)


def _add_or_skip(file: TextFile, rows: RowFormat, selection: FileSelection) -> None:
    """Add a file from a folder or pattern to the files to read, or record it as skipped.

    The index and metadata of a file of token ids are neither added nor recorded.
    """
    path, kind = file.path, text_format(file.path)
    if path.name.startswith("."):
        selection.skip_file(file, HIDDEN)
    elif _is_shard_companion(path):
        return
    elif uncompressed_suffix(path) in MARKDOWN and without_suffixes(path).name.lower() in DESCRIPTIONS:
        selection.skip_file(file, path.name)
    elif kind is None and (path.is_file() or not path.exists()):  # not a FIFO or a device
        selection.skip_file(file, _describe_kind(path), *_conversion_to_text(path))
    elif kind in (TEXT, TOKEN_IDS) and not rows.is_plain_text:
        selection.skip_file(file, _describe_kind(path))
    elif other := unreadable_kind(path):
        selection.skip_file(file, other)
    else:
        selection.files.append(file)


def _is_shard_companion(path: Path) -> bool:
    shard = path.with_suffix("")
    return path.suffix in WITH_TOKEN_IDS and text_format(shard) == TOKEN_IDS and shard.exists()


def _conversion_to_text(path: Path) -> tuple[str, str]:
    """Return why a file is not read, and a command that converts such files (stem NAME) to text.

    Both are empty for an unknown suffix.
    """
    example = Path(f"NAME{_describe_kind(path)}") if path.suffix else path
    reason, hint = conversion_to_text(uncompressed_suffix(path), example) or ("", "")
    return reason, hint


def _describe_kind(file: Path) -> str:
    """Return the format and compression suffixes of a file, or its name if it has neither."""
    suffix = uncompressed_suffix(file)
    is_packed = file.suffix.lower() in COMPRESSIONS
    return suffix + file.suffix * is_packed if suffix or is_packed else file.name


def _without_duplicates(selection: FileSelection) -> list[TextFile]:
    """Return the files sorted by path, each real file once; skipped links to it are recorded."""
    real: dict[str, TextFile] = {}
    for file in sorted(selection.files, key=lambda file: (file.path.is_symlink(), file.path)):
        if real.setdefault(os.path.realpath(file.path), file) is not file:
            selection.skip_file(file, ALREADY_READ)
    return sorted(real.values(), key=lambda file: file.path)


def _without_textless_tables(
    selection: FileSelection, rows: RowFormat, can_open: Callable[[Path], bool]
) -> list[TextFile]:
    """Return the files without the tables that lack the text column, if there are other files."""
    kinds = {file: text_format(file.path) for file in selection.files}
    if all(kind in TABLES for kind in kinds.values()):
        return selection.files
    has_columns = any(kind not in (*TABLES, TEXT) for kind in kinds.values())
    own_column = _ALONE if rows.fields[0].setting == TEXT_OPTION else _IN_A_MIXTURE
    kept = []
    for file, kind in kinds.items():
        if kind not in TABLES or not can_open(file.path):
            kept.append(file)
            continue
        column, fault = _find_column(file.path, rows)
        if column:
            kept.append(file)
        elif fault is None:
            selection.skip_file(file, EMPTY)
        elif kind == ".json" and fault.code != "DAT011":  # a JSON document that is not a table
            selection.skip_file(file, _describe_kind(file.path))
        else:
            hint = own_column if has_columns or fault.code != "DAT011" else fault.hint
            selection.skip_file(file, _describe_kind(file.path), fault.message, hint)
    return kept


def _find_column(path: Path, rows: RowFormat) -> tuple[str | None, ProjectError | None]:
    """Return a table's columns, or None if it has no rows, and the error of reading them, or None."""
    from neobert.data.sources.text_files import file_columns  # `lint` of text elsewhere does without

    try:
        return file_columns(path, rows), None
    except ProjectError as error:
        return None, error
