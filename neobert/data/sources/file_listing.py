"""Paths and glob patterns of `dataset.path`, and the files of folders: each real folder once."""

from __future__ import annotations

import glob
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from neobert.config.text_formats import COMPRESSIONS, PARQUET
from neobert.data.sources.unreadable import unopened_error, unreadable_error
from neobert.runfiles.prepared_parts import is_joined
from neobert.runfiles.run_dir import MANIFEST, RESOLVED

_LIST = "set dataset.path to a list, written as [first.txt, second.txt]"
_SHELL = "set dataset.path to an existing file or folder, or to a pattern such as novels/*.txt"
PREPARED = {"manifest.json", "train.tokens"}
"""Files that identify a folder of prepared data."""
OUTPUTS = ({RESOLVED, MANIFEST}, PREPARED)
"""Files that identify a run directory, or prepared data."""
EMPTY = "empty"
_SPECIAL = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFBLK: "device", stat.S_IFCHR: "device"}


class InputPath(NamedTuple):
    """A file or folder to read.

    Attributes:
        base: folder that the names of its files are relative to. Names determine the split, and identify the
            text.
        is_named: whether the path itself is given, not matched by a pattern.
    """

    path: Path
    base: Path
    is_named: bool = True


def resolve_paths(paths: Sequence[str]) -> tuple[InputPath, ...]:
    """Resolve paths and patterns. An existing path is never a pattern, so `a[1].txt` can be read.

    The files of a single folder are named below that folder. With several paths, each name starts with the
    last part of its path, so that `[data/train, data/test]` is two splits.

    Raises DAT001 for a path that does not exist, and for a pattern that matches nothing.
    """
    given = [Path(os.path.expanduser(path)) for path in paths]
    if len(given) == 1 and given[0].exists():
        (path,) = given
        return (InputPath(path, path if path.is_dir() else path.parent),)
    return tuple(resolved for path in given for resolved in _resolve_path(path))


def _resolve_path(path: Path) -> Iterator[InputPath]:
    if path.exists():
        yield InputPath(path, path.parent)
        return
    if not glob.has_magic(str(path)):
        raise unreadable_error(path, "does not exist", _LIST if "," in path.name else _SHELL)
    matches = sorted(glob.glob(str(path), recursive=True))
    if not matches:
        raise unreadable_error(path, "matches no file", _SHELL)
    base = Path(*_literal_parts(path))
    yield from (InputPath(Path(match), base, is_named=False) for match in matches)


def _literal_parts(path: Path) -> Iterator[str]:
    """Yield the parts of a pattern before the first part with a wildcard."""
    for part in path.parts[:-1]:
        if glob.has_magic(part):
            return
        yield part


def list_files(root: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders that it links to, each real folder once.

    Run directories and prepared data below `root` are skipped: otherwise the files of a run inside its data
    folder would be read as text on a resume, and the text would differ from the first session's.
    """
    pending, seen = deque([str(root)]), set()
    while pending:
        for folder, folders, names in os.walk(pending.popleft(), onerror=_raise_error):
            real = os.path.realpath(folder)
            is_output = any(each.issubset(names) for each in OUTPUTS) or is_joined(Path(folder))
            if folder != str(root) and is_output:
                folders.clear()
                continue
            folders[:] = sorted(name for name in folders if not name.startswith(".") and real not in seen)
            if real not in seen:
                seen.add(real)
                pending.extend(path for name in folders if os.path.islink(path := os.path.join(folder, name)))
                yield from (Path(folder, name) for name in sorted(names))


def unreadable_kind(file: Path) -> str:
    """Return what a file without readable text is, such as `empty` or `FIFO`; else an empty string.

    Raises DAT001 for a broken link, a file that cannot be accessed, and a truncated file of 0 bytes.
    """
    try:
        state = file.stat()
    except OSError as error:
        if not file.is_symlink() or isinstance(error, PermissionError):
            raise unopened_error(file, error) from error
        hint = f"restore the target of the link, or remove the link {file.name}"
        raise unreadable_error(file, f"is a broken link: {error.strerror}", hint) from error
    if not stat.S_ISREG(state.st_mode):
        return _SPECIAL.get(stat.S_IFMT(state.st_mode), "special file")
    if state.st_size == 0 and file.suffix.lower() in (*COMPRESSIONS, PARQUET):
        message = f"is truncated: 0 bytes, which is not a valid {file.suffix} file"
        raise unreadable_error(file, message, "copy the file again")
    return "" if state.st_size else EMPTY


def _raise_error(error: OSError) -> None:
    raise unreadable_error(
        Path(error.filename), f"cannot be listed: {error.strerror}", "check the folder and its permissions"
    ) from error


def is_saved_dataset(path: Path) -> bool:
    """Return whether `save_to_disk` wrote the folder."""
    is_single = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return is_single or (path / "dataset_dict.json").is_file()
