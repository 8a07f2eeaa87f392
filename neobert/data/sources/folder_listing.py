"""Listing of a folder: its regular files, each real folder once."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from neobert.config.text_formats import COMPRESSIONS, PARQUET
from neobert.data.sources.unreadable import unreadable
from neobert.runfiles.run_dir import MANIFEST, RESOLVED

OUTPUTS = ({RESOLVED, MANIFEST}, {"manifest.json", "train.tokens"})
"""Files that identify a run directory and a folder of prepared data."""
EMPTY = "empty"
_SPECIAL = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFBLK: "device", stat.S_IFCHR: "device"}


def listed_files(root: Path) -> Iterator[Path]:
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


def why_not_text(file: Path) -> str:
    """Return `empty`, `FIFO`, `socket` or `device` for a file without readable text; else an empty string.

    Raises DAT001 for a broken link or a truncated file of 0 bytes.
    """
    try:
        state = file.stat()
    except OSError as error:
        fault = "is a broken link" if file.is_symlink() else "cannot be accessed"
        hint = f"restore the file, or remove {file.name}"
        raise unreadable(file, f"{fault}: {error.strerror}", hint) from error
    if not stat.S_ISREG(state.st_mode):
        return _SPECIAL.get(stat.S_IFMT(state.st_mode), "special file")
    if state.st_size == 0 and file.suffix.lower() in (*COMPRESSIONS, PARQUET):
        message = f"is truncated: 0 bytes, which is not a valid {file.suffix} file"
        raise unreadable(file, message, "copy the file again")
    return "" if state.st_size else EMPTY


def _raise(error: OSError) -> None:
    raise unreadable(
        Path(error.filename), f"cannot be listed: {error.strerror}", "check its permissions"
    ) from error
