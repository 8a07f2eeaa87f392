"""Files written in one step."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file: a reader sees the old content or the new, never a part. Raises OSError.

    The temporary file next to it must be new: in a folder that others can write to, an existing link of that
    name could lead to another file.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:
            file.write(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
