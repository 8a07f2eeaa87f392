"""HTML page of a report: template, style, script and data in one self-contained file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from launcher.htmlreport.decimation import Series
from launcher.htmlreport.markup import folded, text
from launcher.htmlreport.overview import heading, headings, title_of
from launcher.htmlreport.panels import Panel, panels_of, single_panels_of
from launcher.htmlreport.run_record import Event, RunRecord
from launcher.htmlreport.sections import details, differences
from neobert import __version__
from neobert.plurals import counted
from neobert.printable import printable

MAX_RUNS = 32
"""Runs of a comparison at most: eight colors, each with four patterns of lines."""
DIGITS = 6
"""Significant digits of a plotted value: a chart has fewer than a thousand pixels."""


def write_page(runs: Sequence[RunRecord]) -> str:
    """Return the HTML of one run, or of a comparison of at most `MAX_RUNS`."""
    here = Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "charts.js"))
    names = title_of(runs)
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=text(f"{names} - neobert-launch report"),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        heading=heading(runs[0]) if len(runs) == 1 else headings(runs),
        body=_body(runs),
        footer=text(_footer(runs)),
        data=_data_block(runs),
    )


def _body(runs: Sequence[RunRecord]) -> str:
    if len(runs) == 1:
        return details(runs[0])
    return differences(runs) + "".join(folded(text(run.name), details(run)) for run in runs)


def _footer(runs: Sequence[RunRecord]) -> str:
    written = datetime.now(UTC).isoformat(timespec="seconds")
    rows = counted(sum(run.history.num_rows for run in runs), "row")
    return (
        f"Written by neobert-launch {__version__} at {written} from {rows} of metrics. "
        "Charts of many rows show the lowest and the highest value of each pixel. "
        "Training time is the measured time of steps and evaluations, without the time between sessions; "
        "cost is based on training time."
    )


def _data_block(runs: Sequence[RunRecord]) -> str:
    """Return the data of the charts as JSON, escaped so that it cannot close its script element."""
    panels = panels_of(runs) if len(runs) == 1 else single_panels_of(runs)
    content = {
        "runs": [_run_data(run, panels, run.events() if len(runs) == 1 else ()) for run in runs],
        "panels": [
            {
                "title": printable(panel.title),
                "unit": panel.unit,
                "lines": [[printable(label), name] for label, name in panel.lines],
            }
            for panel in panels
        ],
    }
    plain = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _run_data(run: RunRecord, panels: Sequence[Panel], events: Iterable[Event]) -> dict[str, Any]:
    series = run.series
    points = sorted(run.history.clock.points.values())
    axes = enumerate(("steps", "tokens", "time"))
    names = [name for panel in panels for _, name in panel.lines if name in series]
    return {
        "name": printable(run.name),
        "last": run.last_step,
        "clock": {name: [point[at] for point in points] for at, name in axes},
        "series": {name: _line(series[name]) for name in names},
        "events": [
            {"kind": event.kind, "step": event.step, "text": printable(event.text)} for event in events
        ],
    }


def _line(series: Series) -> dict[str, Any]:
    points = series.points
    return {"steps": [step for step, _ in points], "values": [_short(value) for _, value in points]}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
