"""Files and folders as splits.

A file belongs to the split that its name starts with (`train-00001.parquet`, `valid.txt.gz`) or that one of
its folders below the root is named after (`test/part.jsonl`); every other file is training text.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from neobert.config.text_formats import COMPRESSIONS, READABLE, TEXT, kind_of, suffix_of, without_suffixes
from neobert.data.sources.file_digests import DescribeFile
from neobert.data.sources.readers import FileSource, TextSource
from neobert.data.sources.rows import RowFormat
from neobert.data.sources.splits import ALIASES
from neobert.data.sources.unreadable import unreadable, way_to_text
from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.runfiles.run_dir import MANIFEST, RESOLVED

TABLES = {".csv", ".tsv", ".json", ".conll"}
OUTPUTS = ({RESOLVED, MANIFEST}, {"manifest.json", "train.tokens"})
"""Files that identify a run directory and a folder of prepared data."""
ALREADY_READ = "link to a file that is read"


def local_splits(path: Path, rows: RowFormat, describe: DescribeFile) -> dict[str, Callable[[], TextSource]]:
    """Return a function that opens each split of a file or folder, by split name.

    Raises DAT001 without a readable file, DAT004 for an empty file.
    """
    if not path.exists():
        raise unreadable(path, "does not exist", "set dataset.path to a file or folder")
    if not path.is_dir():
        _check_file(path)
        return {"train": lambda: FileSource(str(path), path.parent, (path,), rows, describe)}
    members: dict[str, list[Path]] = {}
    found, others = _files_below(path, rows)
    for file in found:
        members.setdefault(_split_of(file.relative_to(path)), []).append(file)
    left_out = f"; not read: {_listed(others)}" if others else ""
    return {
        name: partial(
            FileSource,
            f"{path} ({name}, {counted(len(files), 'file')}{left_out})",
            path,
            tuple(files),
            rows,
            describe,
        )
        for name, files in sorted(members.items())
    }


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise unreadable(path, "is not a regular file", "set dataset.path to a file or folder")
    if kind_of(path) is None:
        message, hint = way_to_text(suffix_of(path), path) or (
            f"is not in a supported format ({READABLE})",
            "convert the file to .jsonl or .txt, or correct its suffix",
        )
        raise unreadable(path, message, hint)
    if path.stat().st_size == 0:
        raise ProjectError("DAT004", "is empty", "set dataset.path to a file with text", str(path))


def _files_below(root: Path, rows: RowFormat) -> tuple[list[Path], Counter[str]]:
    """Return the sorted files to read, without duplicates, and the number of other files by kind.

    Tables are read only without other text: next to text, they usually contain metadata. Plain text is
    not read if the task needs several columns.
    """
    others: Counter[str] = Counter()
    found: dict[str, list[Path]] = {}
    for file in _listed_files(root):
        kind = kind_of(file)
        is_read = rows.is_plain_text or kind != TEXT
        if file.name.startswith(".") or kind is None or not is_read:
            others[_kind_in_words(file)] += 1
        elif _holds_something(file):
            found.setdefault(kind, []).append(file)
        else:
            others["empty"] += 1
    if rows.is_plain_text and any(kind not in TABLES for kind in found):
        others += Counter({kind: len(found.pop(kind)) for kind in TABLES & found.keys()})
    if not found:
        raise _nothing_to_read(root, others)
    files, copies = _each_once([file for files in found.values() for file in files])
    refuse_two_formats(files)
    if copies:
        others[ALREADY_READ] = copies
    return files, others


def refuse_two_formats(files: Iterable[Path]) -> None:
    """Raise DAT001 for files that differ in format or compression only, such as train.jsonl and train.tsv.

    One is usually a copy of the other: reading both would repeat each text, and it is unknown which to skip.
    """
    seen: dict[Path, Path] = {}
    for file in files:
        other = seen.setdefault(without_suffixes(file), file)
        if other != file:
            message = f"holds both {other.name} and {file.name}"
            hint = f"remove {other.name} or {file.name}, or rename {file.name}"
            raise unreadable(file.parent, message, hint)


def _kind_in_words(file: Path) -> str:
    """Return the format and compression suffixes of a file, or its name if it has neither."""
    suffix = suffix_of(file)
    is_packed = file.suffix.lower() in COMPRESSIONS
    return suffix + file.suffix * is_packed if suffix or is_packed else file.name


def _nothing_to_read(root: Path, others: Counter[str]) -> ProjectError:
    examples = [Path(f"NAME{kind}") for kind, _ in _ranked(others) if kind.startswith(".")]
    ways = [way_to_text(suffix_of(example), example) for example in examples]
    hint = next((hint for _, hint in filter(None, ways)), "set dataset.path to a folder with text")
    seen = _listed(others) or "nothing"
    return unreadable(root, f"has no file in a supported format ({READABLE}); found {seen}", hint)


def _listed_files(root: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders that it links to, each real folder once.

    Run directories and prepared data below `root` are skipped: otherwise the files of a run inside its data
    folder would be read as text on a resume, and the text would differ from that of the first session.
    """
    pending, seen = deque([str(root)]), set()
    while pending:
        for folder, folders, names in os.walk(pending.popleft(), onerror=_raise):
            real = os.path.realpath(folder)
            if folder != str(root) and any(each.issubset(names) for each in OUTPUTS):
                folders.clear()
                continue
            folders[:] = sorted(name for name in folders if not name.startswith(".") and real not in seen)
            if real not in seen:
                seen.add(real)
                pending.extend(path for name in folders if os.path.islink(path := os.path.join(folder, name)))
                yield from (Path(folder, name) for name in sorted(names))


def _each_once(files: list[Path]) -> tuple[list[Path], int]:
    """Return the sorted files without duplicates, real files before links, and the number of duplicates."""
    real: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: (file.is_symlink(), file)):
        real.setdefault(os.path.realpath(file), file)
    return sorted(real.values()), len(files) - len(real)


def _holds_something(file: Path) -> bool:
    """Return whether a file is not empty. Raises DAT001 for a broken link or a truncated file of 0 bytes."""
    try:
        size = file.stat().st_size
    except OSError as error:
        fault = "is a broken link" if file.is_symlink() else "cannot be accessed"
        raise unreadable(
            file, f"{fault}: {error.strerror}", f"restore the file, or remove {file.name}"
        ) from error
    if size == 0 and file.suffix.lower() in (*COMPRESSIONS, ".parquet"):
        raise unreadable(
            file,
            f"is truncated: 0 bytes, which is not a valid {file.suffix} file",
            "copy the file again",
        )
    return size > 0


def _listed(counts: Counter[str]) -> str:
    """Return the five most frequent kinds with their counts, as text."""
    return ", ".join(f"{count} x {kind}" for kind, count in _ranked(counts)[:5])


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    """Sort by count, then by kind, so that the order of a folder's listing does not matter."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _raise(error: OSError) -> None:
    raise unreadable(
        Path(error.filename), f"cannot be listed: {error.strerror}", "check its permissions"
    ) from error


def _split_of(relative: Path) -> str:
    for folder in relative.parts[:-1]:
        if folder.lower() in ALIASES:
            return ALIASES[folder.lower()]
    return ALIASES.get(re.split(r"[-_.\s]", relative.name.lower(), maxsplit=1)[0], "train")
