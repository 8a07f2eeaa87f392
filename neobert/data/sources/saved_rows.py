"""Splits and rows of a folder that `save_to_disk` wrote, read without the library `datasets`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neobert.data.sources.file_listing import is_saved_dataset
from neobert.data.sources.table_rows import Rows
from neobert.data.sources.unreadable import unreadable_error
from neobert.errors import ProjectError, first_line


def split_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each split by name; a dataset without splits is the split `train`.

    Raises DAT001 for a damaged folder.
    """
    splits = root / "dataset_dict.json"
    if not splits.is_file():
        return {"train": root}
    try:
        folders = {name: root / name for name in json.loads(splits.read_text("utf-8"))["splits"]}
    except (ValueError, KeyError, TypeError):
        raise _damaged_folder_error(root, f"{splits.name} has no list of splits") from None
    missing = [name for name, folder in folders.items() if not is_saved_dataset(folder)]
    if missing or not folders:
        raise _damaged_folder_error(root, f"split {missing[0]} is missing" if missing else "it has no splits")
    return folders


def saved_rows(folder: Path) -> Rows:
    """Yield (location for messages, values by column) of a split. Raises DAT001 for a damaged folder."""
    try:
        for number, values in enumerate(_read_values(folder), 1):
            yield f"{folder}, row {number}", values
    except (OSError, ValueError, KeyError) as error:  # Arrow's errors are of these
        raise _damaged_folder_error(folder, first_line(error)) from error


def class_names(folder: Path, column: str) -> list[str]:
    """Return the names of a column's classes, by number; empty for a column of another kind than ClassLabel.

    Raises DAT001 for a damaged folder.
    """
    file = folder / "dataset_info.json"
    try:
        feature = (json.loads(file.read_text("utf-8")).get("features") or {}).get(column)
    except (OSError, ValueError) as error:
        raise _damaged_folder_error(folder, f"{file.name}: {first_line(error)}") from error
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return []
    return list(feature.get("names") or [])


def _damaged_folder_error(folder: Path, reason: str) -> ProjectError:
    message = f"is not a complete dataset of save_to_disk: {reason}"
    return unreadable_error(folder, message, "save the dataset again")


def _read_values(folder: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import ipc, memory_map  # `lint` of other text does without

    for file in json.loads((folder / "state.json").read_text("utf-8"))["_data_files"]:
        with memory_map(str(folder / file["filename"])) as source:
            for batch in ipc.open_stream(source):
                yield from batch.to_pylist()
