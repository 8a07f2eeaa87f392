"""Text that is prepared already: `dataset.path` is a folder of joined parts, without their source."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

from neobert.config.corpora import corpus_paths, is_remote
from neobert.config.schema import DatasetConfig
from neobert.data.sources.readers import Reader, State
from neobert.data.sources.rows import RowFormat
from neobert.errors import ProjectError
from neobert.runfiles.cache_folder import cache_folder
from neobert.runfiles.part_faults import join_command
from neobert.runfiles.prepared_parts import MANIFEST, is_joined


@dataclass(frozen=True)
class PreparedSource:
    """Split of prepared data, used as a source although its text is not stored."""

    label: str
    rows: RowFormat
    documents: int
    fingerprint: str
    column: str | None = None

    def open(self, state: State | None = None) -> Reader:  # noqa: ARG002
        """Raise DAT001: only tokens are stored."""
        self.refuse("holds tokens, not text")

    def count(self) -> int:
        """Return the number of documents."""
        return self.documents

    def identity(self) -> Any:
        """Return the fingerprint of the data."""
        return self.fingerprint

    def refuse(self, message: str) -> NoReturn:
        """Raise DAT001 for a use that needs the text."""
        hint = "set dataset.path to the original text"
        raise ProjectError("DAT001", message, hint, self.label)


def remote_copy_folder(url: str, dataset: DatasetConfig) -> Path:
    """Return the cache folder for the copy of prepared data from an object store."""
    name = blake2b(url.rstrip("/").encode(), digest_size=16).hexdigest()
    return cache_folder(dataset) / "remote" / name


def joined_folder(dataset: DatasetConfig) -> Path | None:
    """Return the folder of joined parts that `dataset.path` names; None for anything else.

    For data in an object store, this is the folder of its copy, if that is complete.
    """
    paths = corpus_paths(dataset)
    if is_remote(dataset):
        folder = remote_copy_folder(paths[0], dataset)
        return folder if is_joined(folder) else None
    local = Path(os.path.expanduser(paths[0])) if len(paths) == 1 else None
    return local if local is not None and is_joined(local) else None


def prepared_splits(folder: Path, rows: RowFormat, dataset: DatasetConfig) -> dict[str, PreparedSource]:
    """Return the splits of joined parts. Raises DAT001 for a stream, and for a slice of the training text."""
    if dataset.streaming or dataset.train_split != "train":
        key = "dataset.streaming" if dataset.streaming else "dataset.train_split"
        hint = f"remove {key}, or set dataset.path to the original text"
        raise ProjectError("DAT001", f"{folder} is prepared text, which is read as a whole", hint, key)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {
            name: PreparedSource(
                f"{folder} ({name}, prepared)", rows, split["counts"]["documents"], manifest["fingerprint"]
            )
            for name, split in manifest["splits"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"run {join_command(folder)} again"
        place = str(folder / MANIFEST)
        raise ProjectError("DAT001", "is not a manifest of prepared data", hint, place) from error
