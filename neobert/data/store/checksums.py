"""Checksums of prepared files, each computed once per state of its file."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from neobert.data.sources.file_digests import FOLDER, FileDigests


def altered_files(folder: Path, files: Mapping[str, Mapping[str, Any]], cache: Path) -> list[str]:
    """Return the files whose size or SHA-256 differs from their entry in a manifest, by name.

    Digests are cached in `cache`: only files that changed since are read again.
    """
    digests = FileDigests(cache / FOLDER / "sha256", sha256)
    return [name for name, file in sorted(files.items()) if not _is_intact(folder / name, file, digests)]


def _is_intact(path: Path, file: Mapping[str, Any], digests: FileDigests) -> bool:
    # The size first: a file of another size is not read.
    is_whole = path.is_file() and path.stat().st_size == file["bytes"]
    return is_whole and digests.describe(path)[1] == file["sha256"]


def manifest_files(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a manifest's split files by name, or for joined parts by path in the folder."""
    if "parts" in manifest:
        return {
            f"{part['folder']}/{name}": file
            for part in manifest["parts"]
            for name, file in manifest_files(part).items()
        }
    return {name: file for split in manifest["splits"].values() for name, file in split["files"].items()}
