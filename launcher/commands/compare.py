"""`runs compare`: config differences with their origins, and metrics side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.commands.status import select_runs
from launcher.rundir.comparable_values import comparable_values
from launcher.rundir.discovery import relative_names
from launcher.rundir.records import Record, read_json
from launcher.rundir.run_history import Axis, RunHistory, common_positions
from launcher.rundir.run_status import RunStatus, best_text, read_status, selecting_metric
from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import align_right, display_width
from launcher.terminal.metric_text import metric_label, value_text
from launcher.terminal.table import format_columns
from launcher.terminal.values import (
    UNKNOWN,
    origin_text,
    result_json,
    show_count,
    show_number,
    show_value,
)
from neobert.config import Origin
from neobert.config.canonical import flatten
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.metric_names import EVAL_LOSS, TRAIN_LOSS
from neobert.printable import printable
from neobert.runfiles.run_dir import MANIFEST, METRICS, PROVENANCE, RESOLVED

CODE = "code_version"
TASK = "task"
MAX_ROWS = 10
SHORTEST_NAME = 12
SAME_TOKENS = 0.01
"""Relative difference in tokens per step above which runs are compared at equal tokens, not steps."""
MISSING = "(no such key)"


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run to compare; `metric` is the metric that selects its checkpoints, or the evaluation loss."""

    name: str
    status: RunStatus
    config: dict[str, Any]
    origins: Record
    metric: str
    history: RunHistory


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Values of a metric at one step or token count, one per run; `is_estimate` marks interpolation."""

    position: int
    values: tuple[float | None, ...]
    is_estimate: tuple[bool, ...]


def run(folders: Sequence[Path], by: Axis | None, output_format: str) -> int:
    """Print the differences between the configs of runs, and their metrics side by side.

    `by` None compares at equal steps if all runs have the same tokens per step, else at equal tokens.
    Raises `ProjectError` for fewer than two runs, or a folder without a run.
    """
    folders = select_runs(folders)
    if len(folders) < 2:
        message, hint = f"runs compare needs at least 2 runs, not {len(folders)}", "pass more run directories"
        raise ProjectError("usage", message, hint, exit_code=EXIT_USAGE)
    statuses = [read_status(folder, datetime.now(UTC)) for folder in folders]
    axis: Axis = by or ("step" if _have_equal_step_tokens(statuses) else "tokens")
    names = _shorten_names(relative_names(folders), console.terminal_width())
    runs = [_read_compared_run(*each, axis) for each in zip(folders, names, statuses, strict=True)]
    differing = differing_keys(runs)
    metrics = dict.fromkeys([TRAIN_LOSS, EVAL_LOSS, *(each.metric for each in runs)])
    tables = {} if TASK in differing else {name: metric_rows(runs, name) for name in metrics}
    if output_format == "json":
        console.write(result_json(_as_json(runs, axis, differing, tables)))
    else:
        parts = [_config_text(runs, differing), _results_text(runs), *_table_texts(runs, axis, tables)]
        if TASK in differing:
            parts.append("the runs have different tasks: their metrics are not comparable")
        console.write("\n\n".join(parts))
    return EXIT_OK


def _read_compared_run(folder: Path, name: str, status: RunStatus, axis: Axis) -> ComparedRun:
    resolved, manifest = read_json(folder / RESOLVED), read_json(folder / MANIFEST)
    flat = comparable_values(flatten(resolved))
    if isinstance(manifest.get(CODE), str):
        flat[CODE] = manifest[CODE]
    selecting = selecting_metric(resolved)
    metric = EVAL_LOSS if selecting is None else selecting[0].name
    origins = {key: _without_position(each) for key, each in read_json(folder / PROVENANCE).items()}
    return ComparedRun(name, status, flat, origins, metric, RunHistory.read(folder / METRICS, axis))


def _without_position(origin: Any) -> Any:
    """Return an origin without its position on the command line, which does not describe the run."""
    is_argument = isinstance(origin, dict) and origin.get("kind") == "override"
    return origin | {"line": 0} if is_argument else origin


def _shorten_names(names: Sequence[str], terminal: int) -> list[str]:
    """Cut the start of run names to fit `terminal` columns (0: no limit), unless two would become equal."""
    width = max(SHORTEST_NAME, terminal // (len(names) + 2)) if terminal else max(map(display_width, names))
    short = [console.cut_name(name, width) for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


def _have_equal_step_tokens(statuses: Sequence[RunStatus]) -> bool:
    """Return whether tokens per step agree within `SAME_TOKENS` in all runs that report them."""
    rates = [each.tokens_total / each.step for each in statuses if each.tokens_total and each.step]
    return not rates or max(rates) <= (1 + SAME_TOKENS) * min(rates)


def differing_keys(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the sorted keys whose values differ between the runs, or that only some runs have."""
    keys = sorted({key for each in runs for key in each.config})
    return [
        key
        for key in keys
        if any(each.config.get(key, _NONE) != runs[0].config.get(key, _NONE) for each in runs)
    ]


_NONE = object()


def metric_rows(runs: Sequence[ComparedRun], name: str) -> list[MetricRow]:
    """Return rows with the values of a metric in all runs, at equal steps or token counts.

    Training losses are means since the previous row. A run that failed before its first metrics has no
    values; if fewer than two runs have metrics, the result is empty.
    """
    histories = [each.history for each in runs if each.history.last]
    if len(histories) < 2:
        return []
    last = min(history.last for history in histories)
    grid = common_positions([history.metric(EVAL_LOSS) for history in histories], last, MAX_ROWS)
    rows = []
    for before, position in zip([0, *grid], grid, strict=False):
        if name == TRAIN_LOSS:
            points = [(each.history.metric(name).mean(before, position), False) for each in runs]
        else:
            points = [each.history.metric(name).value_at(position) for each in runs]
        values, estimates = zip(*points, strict=True)
        if any(value is not None for value in values):
            rows.append(MetricRow(position, values, estimates))
    return rows


def _origin_text(run: ComparedRun, key: str) -> str:
    content = run.origins.get(key)
    if key == CODE or not isinstance(content, dict):
        return UNKNOWN if key != CODE else MANIFEST
    kind, file, line = (content.get(name) for name in ("kind", "file", "line"))
    origin = Origin(
        kind if kind in ("default", "override", "run") else "file",
        Path(str(file)).name,
        line if isinstance(line, int) else 0,
    )
    return printable(origin_text(origin))


def _config_value_text(run: ComparedRun, key: str) -> str:
    return printable(show_value(run.config[key])) if key in run.config else MISSING


def _config_text(runs: Sequence[ComparedRun], differing: Sequence[str]) -> str:
    """Format the differing keys with values and origins: a table if it fits the terminal, else blocks."""
    keys = set[str]().union(*(each.config for each in runs))
    head = paint(f"config: {len(differing)} of {len(keys)} keys differ", "bold")
    if not differing:
        return head
    cells = [
        [key, *(f"{_config_value_text(each, key)} ({_origin_text(each, key)})" for each in runs)]
        for key in differing
    ]
    rows = [["", *(each.name for each in runs)], *cells]
    widths = [max(display_width(row[index]) for row in rows) for index in range(len(rows[0]))]
    if not console.terminal_width() or sum(widths) + 2 * len(widths) <= console.terminal_width():
        return f"{head}\n{format_columns(rows, indent='  ')}"
    blocks = [
        (key, [[each.name, _config_value_text(each, key), _origin_text(each, key)] for each in runs])
        for key in differing
    ]
    return "\n".join([head, *(f"  {key}\n{format_columns(block, indent='    ')}" for key, block in blocks)])


def _results_text(runs: Sequence[ComparedRun]) -> str:
    names = list(dict.fromkeys(name for each in runs for name in each.status.evaluation))
    shown = [name for name in names if name in (EVAL_LOSS, *(each.metric for each in runs))]
    labels = [_metric_label(name) for name in shown]
    rows = [["", "state", "step", "tokens", "tokens/s", "loss", *labels, "best"]]
    for each in runs:
        status = each.status
        values = [_metric_value_text(name, status.evaluation.get(name)) for name in shown]
        rows.append(
            [
                each.name,
                status.state,
                show_count(status.step),
                show_count(status.tokens_total),
                show_count(status.tokens_per_second),
                show_number(status.loss),
                *values,
                best_text(status.best),
            ]
        )
    return f"{paint('results', 'bold')}\n{format_columns(rows, indent='  ')}"


def _table_texts(
    runs: Sequence[ComparedRun], axis: Axis, tables: dict[str, list[MetricRow]]
) -> Iterator[str]:
    for name, rows in tables.items():
        if not rows:
            continue
        note = ", mean since the row above" if name == TRAIN_LOSS else ""
        head = paint(
            f"{_metric_label(name)} at equal {'steps' if axis == 'step' else 'tokens'}{note}", "bold"
        )
        by_two = ["difference"] if len(runs) == 2 else []
        shown = [[axis, *(each.name for each in runs), *by_two], *(_row_cells(name, row) for row in rows)]
        yield f"{head}\n{_right_aligned_table(shown)}"
    if any(any(row.is_estimate) for rows in tables.values() for row in rows):
        yield "~ interpolated between two evaluations"


def _row_cells(name: str, row: MetricRow) -> list[str]:
    values = [
        f"{'~' if is_estimate else ''}{_metric_value_text(name, value)}"
        for value, is_estimate in zip(row.values, row.is_estimate, strict=True)
    ]
    first, *others = row.values
    difference = []
    if len(others) == 1:
        is_known = first is not None and others[0] is not None
        difference = [f"{others[0] - first:+.4f}" if is_known else UNKNOWN]  # type: ignore[operator]
    return [show_count(row.position), *values, *difference]


def _right_aligned_table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(display_width(row[index]) for row in rows) for index in range(len(rows[0]))]
    aligned = (map(align_right, row, widths) for row in rows)
    return "\n".join(f"  {'  '.join(cells)}" for cells in aligned)


def _metric_label(name: str) -> str:
    return "training loss" if name == TRAIN_LOSS else metric_label(name)


def _metric_value_text(name: str, value: float | None) -> str:
    return UNKNOWN if value is None else value_text(name, value)


def _as_json(
    runs: Sequence[ComparedRun], axis: Axis, differing: Sequence[str], tables: dict[str, list[MetricRow]]
) -> dict[str, Any]:
    config = {
        key: [
            {"is_set": key in each.config, "value": each.config.get(key), "origin": each.origins.get(key)}
            for each in runs
        ]
        for key in differing
    }
    return {
        "runs": [asdict(each.status) for each in runs],
        "config": config,
        "by": axis,
        "metrics": {name: [asdict(row) for row in rows] for name, rows in tables.items()},
    }
