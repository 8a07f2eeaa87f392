"""`runs`: the runs below a folder, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.rundir.discovery import default_root, find_runs
from launcher.rundir.run_status import STATE_COLOURS, RunStatus, best_text, read_status
from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import align_left, align_right, display_width, fold
from launcher.terminal.values import result_json, show_age, show_count, show_number
from neobert.errors import EXIT_OK
from neobert.metric_names import EVAL_LOSS
from neobert.printable import printable

UNREADABLE = "unreadable"
BETWEEN = "  "
HEAD = ("run", "state", "step", "loss", "eval", "tokens/s", "seen", "best")
LEFT = ("run", "state", "best")
FIRST_TO_GO = ("eval", "tokens/s", "best")
"""Columns that are dropped, in this order, if the terminal is too narrow for the names and all columns."""
SHORTEST_NAME = 12


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run directory and its state, or the reason why it cannot be read."""

    folder: Path
    status: RunStatus | None
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the status, or the state and the problem of an unreadable run."""
        if self.status is None:
            return {"run": str(self.folder), "state": UNREADABLE, "problem": self.problem}
        return asdict(self.status)


def run(root: Path | None, output_format: str) -> int:
    """Print the runs below `root`, newest heartbeat first; None selects `runs` or the current directory."""
    folder = root or default_root()
    now = datetime.now(UTC)
    listed = [
        ListedRun(each.folder, None if each.problem else read_status(each.folder, now), each.problem)
        for each in find_runs(folder)
    ]
    listed.sort(key=_sort_key)
    if output_format == "json":
        console.write(result_json({"runs": [each.as_json() for each in listed]}))
    elif listed:
        console.write(_runs_table(listed, folder))
    else:
        console.write(printable(f"no runs below {folder}"))
    return EXIT_OK


def _sort_key(listed: ListedRun) -> tuple[bool, float, str]:
    age_s = None if listed.status is None else listed.status.heartbeat_age_s
    return age_s is None, age_s or 0.0, str(listed.folder)


def _runs_table(listed: Sequence[ListedRun], root: Path) -> str:
    rows = [dict(zip(HEAD, HEAD, strict=True))]
    rows += [
        _row_texts(each.status, _relative_name(each.folder, root))
        for each in listed
        if each.status is not None
    ]
    unreadable = [(_relative_name(each.folder, root), each.problem) for each in listed if each.status is None]
    names = [row["run"] for row in rows] + [name for name, _ in unreadable]
    shown, name_width = _fit_columns(rows, max(map(display_width, names)), console.terminal_width())
    widths = {name: max(display_width(row[name]) for row in rows) for name in shown} | {"run": name_width}
    lines = (
        [_table_line(row, widths, is_head=not number) for number, row in enumerate(rows)] if rows[1:] else []
    )
    for name, problem in unreadable:
        label = align_left(console.cut_name(name, name_width), name_width)
        text = printable(f"{label}{BETWEEN}{UNREADABLE}: {problem}")
        lines.append(paint(fold(text, console.terminal_width()), "yellow"))
    return "\n".join(lines)


def _relative_name(folder: Path, root: Path) -> str:
    """Return the path of a run relative to `root`, or its name if it is `root` itself."""
    relative = str(folder.relative_to(root))
    return printable(folder.name or str(folder) if relative == "." else relative)


def _row_texts(status: RunStatus, name: str) -> dict[str, str]:
    of = f"/{show_count(status.max_steps)}" if status.max_steps else ""
    values = (
        name,
        status.state,
        f"{show_count(status.step)}{of}",
        show_number(status.loss),
        show_number(status.evaluation.get(EVAL_LOSS)),
        show_count(status.tokens_per_second),
        show_age(status.heartbeat_age_s),
        best_text(status.best),
    )
    return dict(zip(HEAD, values, strict=True))


def _fit_columns(rows: Sequence[dict[str, str]], longest: int, terminal: int) -> tuple[list[str], int]:
    """Return the columns to show and the width of the run names for a terminal width (0: no limit)."""
    shown = list(HEAD)
    for name in (*FIRST_TO_GO, None):
        taken = sum(
            max(display_width(row[each]) for row in rows) + len(BETWEEN) for each in shown if each != "run"
        )
        room = terminal - taken
        if not terminal or longest <= room:
            return shown, longest
        if room >= SHORTEST_NAME or name is None:
            return shown, max(SHORTEST_NAME, room)
        shown.remove(name)
    raise AssertionError


def _table_line(row: dict[str, str], widths: dict[str, int], *, is_head: bool) -> str:
    cells = [_table_cell(name, console.cut_name(row[name], width), width) for name, width in widths.items()]
    line = BETWEEN.join(cells).rstrip()
    if is_head:
        return paint(line, "dim")
    state = row["state"]
    colour = STATE_COLOURS.get(state)
    return (
        line if colour is None else line.replace(f"{BETWEEN}{state}", f"{BETWEEN}{paint(state, colour)}", 1)
    )


def _table_cell(name: str, text: str, width: int) -> str:
    return align_left(text, width) if name in LEFT else align_right(text, width)
