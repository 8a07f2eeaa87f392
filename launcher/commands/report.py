"""`report`: one run, or a comparison of several, as an HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from launcher.commands.status import select_runs
from launcher.htmlreport.page import MAX_RUNS, render_page
from launcher.htmlreport.run_record import read_run
from launcher.io.files import require_writable, write_text
from launcher.rundir.discovery import find_runs, newest_run, relative_names
from launcher.rundir.run_status import read_status
from launcher.terminal import console
from launcher.terminal.activity import activity
from neobert.errors import EXIT_OK
from neobert.metric_names import EVAL_LOSS
from neobert.plurals import counted
from neobert.printable import printable

FILE, FILE_OF_SEVERAL = "report.html", "compare.html"


def run(paths: Sequence[Path], output: Path | None) -> int:
    """Write the HTML report of runs, by default of the newest run, and print its path.

    A folder selects the runs below it. Without `output`, the report is written into the first folder.
    """
    paths = paths or [newest_run()]
    folders = _sort_by_loss(select_runs([run for path in paths for run in _runs_below(path) or [path]]))
    name = FILE if len(folders) == 1 else FILE_OF_SEVERAL
    path = output or next(each for each in paths if each.is_dir()) / name
    require_writable(path, "pass another file with --output")
    drawn = folders[:MAX_RUNS]
    if len(drawn) < len(folders):
        console.log(
            f"showing the {MAX_RUNS} of {counted(len(folders), 'run')} with the lowest evaluation loss"
        )
    names = relative_names(drawn)
    with activity(f"reading {counted(len(drawn), 'run')}"):
        records = [replace(read_run(each), name=own) for each, own in zip(drawn, names, strict=True)]
        page = render_page(records)
    write_text(path, page)
    console.write(printable(str(path.absolute())))
    return EXIT_OK


def _runs_below(path: Path) -> list[Path]:
    return [run.folder for run in find_runs(path) if not run.problem] if path.is_dir() else []


def _sort_by_loss(folders: Sequence[Path]) -> list[Path]:
    """Return the folders with the lowest evaluation loss first, and runs without one last.

    One or two folders keep the given order.
    """
    if len(folders) <= 2:
        return list(folders)
    now = datetime.now(UTC)
    losses = {folder: read_status(folder, now).evaluation.get(EVAL_LOSS) for folder in folders}
    return sorted(folders, key=lambda folder: (losses[folder] is None, losses[folder] or 0.0))
