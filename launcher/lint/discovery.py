"""The run files and profiles among the paths that a person or a hook names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.io.files import RUN_FILE_SUFFIXES
from launcher.lint.other_files import (
    LeftOut,
    is_passed_over,
    left_out_because,
    left_out_if_named,
    record_of_a_run,
)


@dataclass(frozen=True, slots=True)
class Discovered:
    """Files to lint, in order, and those that are not linted: possible misspellings of ours first."""

    files: tuple[Path, ...]
    left_out: tuple[LeftOut, ...]


def discover(paths: Sequence[Path]) -> Discovered:
    """Return the named files and those of the named folders; each once, sorted within a folder.

    A named file is left out only if it is clearly another tool's: a pre-commit hook names every YAML and
    TOML file of a repository.
    """
    files: dict[Path, None] = {}
    left_out: dict[Path, LeftOut] = {}
    for path in paths:
        is_folder = os.path.isdir(path)  # `Path.is_dir` raises where nobody may look
        found = _in_folder(path) if is_folder else [(path, left_out_if_named(path))]
        for candidate, other in found:
            if other is None:
                files[candidate] = None
            else:
                left_out[candidate] = other
    return Discovered(tuple(files), tuple(sorted(left_out.values(), key=lambda other: not other.meant)))


def _in_folder(folder: Path) -> Iterator[tuple[Path, LeftOut | None]]:
    """Walk a folder; hidden folders, and those that hold no sources, are not entered."""
    for place, folders, names in os.walk(folder):
        entered = []
        for name in sorted(folders):
            path = Path(place, name)
            if is_passed_over(path):
                continue
            if record := record_of_a_run(path):
                yield path, record
            else:
                entered.append(name)
        folders[:] = entered
        for name in sorted(names):
            if name.lower().endswith(RUN_FILE_SUFFIXES) and not name.startswith("."):
                yield Path(place, name), left_out_because(Path(place, name))
