"""Run directories below a folder, including unreadable ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os.path import commonpath
from pathlib import Path

from launcher.rundir.records import parse_json, read_json
from launcher.rundir.run_status import RUNNING, History, read_status
from launcher.terminal import console
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.printable import printable
from neobert.runfiles.checkpoint.state import STATE_DIR
from neobert.runfiles.run_dir import MANIFEST, METRICS, RESOLVED

TRACES = (RESOLVED, METRICS)
"""Files that mark a current or former run directory. A manifest alone may belong to `encode`."""
MAX_DEPTH = 4
MAX_FOLDERS = 20_000
"""Limit of searched folders, so that searching a home directory fails early instead of taking minutes."""

RUNS = Path("runs")


@dataclass(frozen=True, slots=True)
class DiscoveredRun:
    """A run directory; `problem` is the reason why it cannot be read, empty if it can."""

    folder: Path
    problem: str = ""


def find_runs(root: Path) -> list[DiscoveredRun]:
    """Find the run directories in a folder, or the folder itself if it is one.

    The search does not enter run directories and states of checkpoints, which have the config of their run,
    and follows a link only if its target is a run directory. A directory with several names is found once.

    Raises:
        ProjectError: the root is not a folder, or contains too many folders.
    """
    if not root.is_dir():
        message = "not a folder" if root.exists() else "no such folder"
        raise ProjectError("no-runs", message, "pass a folder that contains the runs", str(root), EXIT_USAGE)
    seen: set[tuple[int, int]] = set()
    return list(_search_folder(root, seen, MAX_DEPTH))


def _search_folder(folder: Path, seen: set[tuple[int, int]], deeper: int) -> Iterator[DiscoveredRun]:
    try:
        status = folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError as error:
        yield DiscoveredRun(folder, str(error.strerror))
        return
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    if len(seen) > MAX_FOLDERS:
        message = f"found more than {MAX_FOLDERS:,} folders to search (stopped at {folder})"
        raise ProjectError("no-runs", message, "pass a folder that contains the runs", exit_code=EXIT_USAGE)
    if any(entry.name in TRACES for entry in entries):
        yield DiscoveredRun(folder, why_unreadable_run(folder))
    elif deeper and not (folder.is_symlink() and deeper < MAX_DEPTH):
        for entry in entries:
            if _is_folder(entry):
                yield from _search_folder(folder / entry.name, seen, deeper - 1)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and not entry.name.startswith(".") and entry.name != STATE_DIR
    except OSError:
        return False


def why_unreadable_run(folder: Path) -> str:
    """Return a short reason why a run directory cannot be read; empty if it can."""
    try:
        config = parse_json(folder / RESOLVED)
    except OSError as error:
        return f"{RESOLVED}: {error.strerror}"
    except ValueError as error:
        return f"{RESOLVED}: {error}"
    return "" if "task" in config else f"{RESOLVED}: not a config of this project"


def relative_names(folders: Sequence[Path]) -> list[str]:
    """Return the printable paths of the folders relative to their common parent."""
    paths = [folder.absolute() for folder in folders]
    common = commonpath([path.parent for path in paths])
    return [printable(str(path.relative_to(common))) for path in paths]


def default_root() -> Path:
    """Return the folder to search for runs: `runs` if it exists, else the current directory."""
    return RUNS if RUNS.is_dir() else Path()


def newest_run() -> Path:
    """Return the most recently launched run, preferring running ones, and print its name.

    Raises ProjectError if there is no run below `runs` or the current directory.
    """
    runs = _readable_runs(default_root()) or _readable_runs(Path())
    if not runs:
        message = "no run below the current directory"
        raise ProjectError("no-runs", message, "pass a run directory", exit_code=EXIT_USAGE)
    newest = max(runs, key=lambda each: _launch_order(each.folder)).folder
    newest = Path.cwd() if newest == Path() else newest
    console.log(printable(f"newest run: {newest}"))
    return newest


def _readable_runs(root: Path) -> list[DiscoveredRun]:
    return [run for run in find_runs(root) if not run.problem]


def _launch_order(folder: Path) -> tuple[bool, str]:
    """Return the sort key of a run: whether it is running, then its launch time in ISO 8601."""
    status = read_status(folder, datetime.now(UTC), History())
    return status.state in RUNNING, str(read_json(folder / MANIFEST).get("started_utc") or "")
