"""Opening of a split of prepared text, whole or in joined parts."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neobert.data.store.checksums import files_of
from neobert.data.store.joined_store import BlockTable, JoinedStore
from neobert.data.store.segment_store import LengthStatistics, SegmentStore
from neobert.data.store.token_store import open_split
from neobert.errors import ProjectError

OTHER_FILES = 512
"""Open files of a process besides its text."""


def open_text(folder: Path, manifest: dict[str, Any], split: str) -> SegmentStore:
    """Map a split into memory.

    Raises DAT001 for a missing file or a file of the wrong size, DAT009 if the process may not open as many.
    """
    described = manifest["splits"][split]
    if "parts" not in manifest:
        return open_split(folder, split, described)
    parts = [(part["folder"], part["splits"][split]) for part in manifest["parts"]]
    _allow_open_files(len(files_of(manifest)))
    stores = {
        place: open_split(folder / name, split, described | sizes)
        for place, (name, sizes) in enumerate(parts)
        if sizes["segments"]
    }
    blocks = {name: np.array(values, dtype=np.int64) for name, values in described["blocks"].items()}
    has_text = blocks["segments"] > 0
    table = BlockTable(**{name: values[has_text] for name, values in blocks.items()})
    places = np.searchsorted([*stores], table.part)
    return JoinedStore(
        [*stores.values()], replace(table, part=places), LengthStatistics(**described["lengths"])
    )


def _allow_open_files(number: int) -> None:
    """Raise the limit of this process for open files: each mapped file keeps one."""
    needed = number + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ProjectError(
                "DAT009",
                f"the text has {number:,} files, and this process may open {hard:,} (ulimit -Hn)",
                f"raise the limit to {needed:,}, or prepare the text in fewer parts",
                "dataset.cache_dir",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
