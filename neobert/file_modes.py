"""File permissions of folders that are shared with other users."""

from __future__ import annotations

from pathlib import Path


def share_like_folder(folder: Path) -> None:
    """Set the mode of all files below a folder to the folder's read and write bits. Raises OSError.

    safetensors creates files with mode 0600, regardless of the umask.
    """
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)
