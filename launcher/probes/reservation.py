"""Reserve the bytes of one checkpoint for a moment: a quota refuses them where free space is reported."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MIB = 2**20
IN_MEMORY = ("tmpfs", "ramfs")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Result of the attempt, with the system's error if it failed."""

    status: Literal["done", "refused", "unsupported", "not tried"]
    error: str = ""


NOT_TRIED = Reservation("not tried")


def reserve(folder: Path, size_mib: float, filesystem: str) -> Reservation:
    """Reserve `size_mib` in a file of `folder` that has no name any more, and give them back.

    In memory nothing is tried: there the pages would really be taken.
    """
    if size_mib <= 0 or filesystem in IN_MEMORY:
        return NOT_TRIED
    try:
        # Without a name, the kernel frees the file however this process ends.
        with tempfile.TemporaryFile(prefix=".neobert-probe-", dir=folder) as file:
            allocate(file.fileno(), int(size_mib * MIB))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Reservation("refused" if error.errno in NO_ROOM else "unsupported", reason)
    return Reservation("done")


def allocate(descriptor: int, size_bytes: int) -> None:
    """Call fallocate(2). Without it, `os.posix_fallocate` writes every block: minutes on a network disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    length = ctypes.c_int64(size_bytes)
    # The 64-bit spelling is the same function on 64-bit platforms; musl has only the plain name.
    function = getattr(libc, "fallocate64", None) or libc.fallocate
    if function(descriptor, 0, ctypes.c_int64(0), length):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
