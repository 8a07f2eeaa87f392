"""Permissions of files that other users read."""

from __future__ import annotations

from pathlib import Path


def share_like_folder(folder: Path) -> None:
    """Give the files of a folder, at any depth, the folder's read and write permissions. Raises OSError.

    safetensors creates files with mode 0600, regardless of the umask.
    """
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)
