"""Recognition of folders that `save_to_disk` of the `datasets` library wrote."""

from __future__ import annotations

from pathlib import Path


def is_saved_dataset(path: Path) -> bool:
    """Return whether `save_to_disk` wrote the folder."""
    is_single = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return is_single or (path / "dataset_dict.json").is_file()
