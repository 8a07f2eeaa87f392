"""The newest run, which `status`, `watch` and `report` show by default."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from launcher.rundir.discovery import DiscoveredRun, find_runs
from launcher.rundir.records import read_json
from launcher.rundir.run_status import RUNNING, History, read_status
from launcher.terminal import console
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.printable import printable
from neobert.runfiles.run_dir import MANIFEST

RUNS = Path("runs")


def default_root() -> Path:
    """Return the folder to search for runs: `runs` if it exists, else the current directory."""
    return RUNS if RUNS.is_dir() else Path()


def newest_run() -> Path:
    """Return the most recently launched run, preferring running ones, and print its name.

    Raises ProjectError if there is no run below `runs` or the current directory.
    """
    runs = _readable(default_root()) or _readable(Path())
    if not runs:
        message = "no run below the current directory"
        raise ProjectError("no-runs", message, "pass a run directory", exit_code=EXIT_USAGE)
    newest = max(runs, key=lambda each: _launched(each.folder)).folder
    newest = Path.cwd() if newest == Path() else newest
    console.log(printable(f"newest run: {newest}"))
    return newest


def _readable(root: Path) -> list[DiscoveredRun]:
    return [run for run in find_runs(root) if not run.problem]


def _launched(folder: Path) -> tuple[bool, str]:
    """Return whether a run is running, and when it was launched, as an ISO 8601 time in UTC."""
    status = read_status(folder, datetime.now(UTC), History())
    return status.state in RUNNING, str(read_json(folder / MANIFEST).get("started_utc") or "")
