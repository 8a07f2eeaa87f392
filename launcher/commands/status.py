"""`status`: state of runs, in one line each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from launcher.run.summary import saved_step
from launcher.rundir.directory import is_run_directory
from launcher.rundir.discovery import newest_run
from launcher.rundir.run_status import DIED, RunStatus, read_status
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.metric_text import metric_text
from launcher.terminal.values import result_json, show_count, show_duration, show_number
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import listed
from neobert.printable import printable

BETWEEN = "  "
ANY_RUN = "pass the folder of trainer.output_dir; `neobert-launch runs` lists the runs below a folder"
BELOW = "pass a run directory; `neobert-launch runs {}` lists the runs below it"
NO_HOST = "host unknown (manifest.json is missing or damaged)"
"""Shown for a run directory without manifest.json, as left by a launcher killed right after its start."""


def run(folders: Sequence[Path], output_format: str) -> int:
    """Print the state of each run, by default of the newest; return 0 for failed runs too.

    Raises ProjectError for a path that does not exist: as text, after the state of the others was printed.
    """
    folders = folders or [newest_run()]
    present = [folder for folder in folders if folder.exists() or output_format == "json"] or folders
    statuses = [read_status(folder, datetime.now(UTC)) for folder in select_runs(present)]
    if output_format == "json":
        content = (
            asdict(statuses[0]) if len(folders) == 1 else {"runs": [asdict(status) for status in statuses]}
        )
        console.write(result_json(content))
    else:
        console.write(
            "\n".join(fold(status_line(status), console.terminal_width(), BETWEEN) for status in statuses)
        )
    for folder in folders:
        if folder not in present:
            require_run_directory(folder)
    return EXIT_OK


def select_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories among the paths, and log the names of the others.

    In a shell, `sweep/*` also matches sweep.json. Raises ProjectError for a path that does not exist, or
    if no path is a run directory.
    """
    others = [path for path in paths if not is_run_directory(path)]
    for path in others:
        if len(others) == len(paths) or not path.exists():
            require_run_directory(path)
    if others:
        console.log(printable(f"skipped, not run directories: {listed([str(path) for path in others])}"))
    return [path for path in paths if path not in others]


def require_run_directory(folder: Path) -> None:
    """Raise ProjectError if the folder does not exist or is not a run directory."""
    if not is_run_directory(folder):
        raise ProjectError(
            code="no-run-directory",
            message="the folder is not a run directory" if folder.exists() else "no such folder",
            hint=BELOW.format(shlex.quote(str(folder))) if folder.is_dir() else ANY_RUN,
            place=str(folder),
            exit_code=EXIT_USAGE,
        )


def status_line(status: RunStatus) -> str:
    """Format the state of a run as one line."""
    of = f"/{status.max_steps}" if status.max_steps else ""
    elsewhere = "on another host" if status.hostname else NO_HOST
    alive = {True: "alive", False: "not running", None: elsewhere}[status.is_alive]
    fields = [
        f"{status.run}: {status.phase}",
        f"step {status.step}{of}",
        f"loss {show_number(status.loss)}",
        *(metric_text(name, value) for name, value in status.evaluation.items()),
        f"{show_count(status.tokens_per_second)} tokens/s",
        *([f"eta {show_duration(status.eta_s)}"] if status.is_alive is not False else []),
        _checkpoint_text(status),
        *([status.gates] if status.gates else []),
        *([f"restarts {status.restarts}"] if status.restarts else []),
        f"{alive}, {_heartbeat_text(status.heartbeat_age_s)}",
        *([status.reason] if status.reason else []),
    ]
    return printable(BETWEEN.join(fields))


def _heartbeat_text(age_s: float | None) -> str:
    return "no heartbeat yet" if age_s is None else f"heartbeat {show_duration(age_s)} ago"


def _checkpoint_text(status: RunStatus) -> str:
    """Format the age of the newest checkpoint; for a run that has ended, relative to its end."""
    has_ended = status.is_alive is False and not status.phase.startswith(DIED)
    if status.minutes_at_risk is None:  # the last session did not train, such as one that was refused
        step = saved_step(Path(status.run))
        return f"checkpoint of step {step}" if step else "checkpoint -"
    if status.minutes_since_checkpoint is None:
        return f"no checkpoint yet, {status.minutes_at_risk:.1f} min at risk"
    minutes = status.minutes_since_checkpoint
    age = f"{minutes:.1f} min" if minutes >= 1 else show_duration(60 * minutes)
    return f"checkpoint {age} {'before the end' if has_ended else 'ago'}"
