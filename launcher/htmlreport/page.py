"""HTML page of a report: template, style, script and data in one self-contained file.

Each metric of a `TaskSpec` gets a chart. Other metrics, e.g. of hooks, get charts under their own names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from launcher.htmlreport.markup import NUM_COLORS, html_details, html_text
from launcher.htmlreport.overview import heading_html, headings_html, page_title
from launcher.htmlreport.reader import Series
from launcher.htmlreport.run_record import PER_RANK, RunRecord, TimelineEvent
from launcher.htmlreport.sections import details_html, differences_html
from neobert import __version__
from neobert.metric_names import CORPUS_SHARE, EVAL, EVAL_LOSS, PACE, SOURCE, SPARSE, TRAIN_LOSS
from neobert.plurals import counted
from neobert.printable import printable
from neobert.tasks.metric import LOSSES_BY_POSITION, Metric
from neobert.tasks.specs import find_metric

MAX_RUNS = 32
"""Maximum number of runs in a comparison: eight colors, each with four patterns of lines."""
DIGITS = 6
"""Significant digits of a plotted value, more than a chart of under a thousand pixels can show."""

PERCENT = "%"
MAX_OTHER = 24
PARTS = ("data_wait", "copy", "forward", "backward", "clip", "optimizer", "other")
PAUSES = ("logging", "checkpoint", "evaluation")


def render_page(runs: Sequence[RunRecord]) -> str:
    """Render a report on one run, or a comparison of at most `MAX_RUNS` runs, as an HTML page."""
    here = Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "charts.js"))
    names = page_title(runs)
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=html_text(f"{names} - neobert-launch report"),
        style=style,
        style_hash=_csp_hash(style),
        script=script,
        script_hash=_csp_hash(script),
        heading=heading_html(runs[0]) if len(runs) == 1 else headings_html(runs),
        body=_body_html(runs),
        footer=html_text(_footer_text(runs)),
        data=_data_block(runs),
    )


def _body_html(runs: Sequence[RunRecord]) -> str:
    if len(runs) == 1:
        return details_html(runs[0])
    return differences_html(runs) + "".join(
        html_details(html_text(run.name), details_html(run)) for run in runs
    )


def _footer_text(runs: Sequence[RunRecord]) -> str:
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
    panels = make_panels(runs) if len(runs) == 1 else _comparison_panels(runs)
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


def _run_data(run: RunRecord, panels: Sequence[Panel], events: Iterable[TimelineEvent]) -> dict[str, Any]:
    series = run.series
    points = sorted(run.history.clock.points.values())
    axes = enumerate(("steps", "tokens", "time"))
    names = [name for panel in panels for _, name in panel.lines if name in series]
    return {
        "name": printable(run.name),
        "last": run.last_step,
        "clock": {name: [point[at] for point in points] for at, name in axes},
        "series": {name: _line_data(series[name]) for name in names},
        "events": [
            {"kind": event.kind, "step": event.step, "text": printable(event.text)} for event in events
        ],
    }


def _line_data(series: Series) -> dict[str, Any]:
    values = [float(f"{value:.{DIGITS}g}") for _, value in series.points]
    return {"steps": [step for step, _ in series.points], "values": values}


def _csp_hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@dataclass(frozen=True, slots=True)
class Panel:
    """Title, unit and metrics of one chart.

    Attributes:
        unit: unit of the values; `%` shows shares in percent.
        lines: label and name of each metric.
    """

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


def _single_line_panel(title: str, unit: str, name: str) -> Panel:
    return Panel(title, unit, (("", name),))


def _time_lines(parts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((part.replace("_", " "), f"time/{part}_ms") for part in parts)


def _sparse_attention_lines(kind: str, *names: str) -> tuple[tuple[str, str], ...]:
    prefix = f"{kind}_" if kind else ""
    return tuple((name.replace("_", " "), f"{SPARSE}{prefix}{name}") for name in names)


LOSS = Panel("Loss", "", (("training", TRAIN_LOSS), ("evaluation", EVAL_LOSS)))
BY_POSITION = Panel(
    "Evaluation: loss by position in the document",
    "",
    tuple((each.label.removeprefix("loss_").replace("_", " to "), each.name) for each in LOSSES_BY_POSITION),
)
LOOP_PANELS = (
    _single_line_panel("Learning rate", "", "train/learning_rate"),
    _single_line_panel("Gradient norm", "", "train/grad_norm"),
    _single_line_panel("Throughput", "tokens/s", PACE),
    _single_line_panel("MFU", PERCENT, "perf/mfu"),
    Panel("Step time", "ms", _time_lines(("step", "data_wait"))),
    _single_line_panel("Share of steps that waited for the host", PERCENT, "perf/host_bound_share"),
)
STABILITY_PANELS = (
    _single_line_panel("Peak of GPU memory", "% of the GPU", "memory/peak_percent"),
    Panel("Pauses between steps", "ms", _time_lines(PAUSES)),
    _single_line_panel("Weight norm", "", "train/weight_norm"),
    _single_line_panel("Largest attention logit", "", "train/max_attention_logit"),
)
GATE_PANELS = (
    Panel(
        "Gates: mean share of each branch",
        PERCENT,
        _sparse_attention_lines("branch_share", "cmp", "slc", "swa"),
    ),
    Panel(
        "Gates: closed or open, most saturated layer",
        PERCENT,
        _sparse_attention_lines("gate_saturated", "cmp", "slc", "swa"),
    ),
    Panel(
        "Gates: entropy, largest share", "", _sparse_attention_lines("", "gate_entropy_mean", "max_gate_mean")
    ),
    Panel(
        "Gates: dead layers, collapsed tokens",
        PERCENT,
        _sparse_attention_lines("", "dead_layers", "collapse_fraction"),
    ),
    Panel(
        "Selected blocks that a token chose", PERCENT, _sparse_attention_lines("", "free_share", "pct_at_max")
    ),
    Panel(
        "Selected blocks: predicted, read", "", _sparse_attention_lines("", "reads_pred", "reads_act_total")
    ),
)
MEMORY = {"gpu": "GPU memory reserved, per rank", "host": "Host memory (RSS), per rank"}
STEP_PARTS = Panel("Parts of a step", "ms", _time_lines(PARTS))


def make_panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """Return the charts with data from at least one of the runs, without lines that have no data."""
    series = {name: found for run in reversed(runs) for name, found in run.series.items()}
    metrics = {metric.name: metric for run in runs for metric in run.metrics}
    evaluated = sorted(name for name in series if name.startswith(EVAL) and not name.startswith(SOURCE))
    metrics |= {name: find_metric(name) for name in evaluated if name not in metrics}
    has_parts = "time/forward_ms" in series
    panels = [
        LOSS,
        BY_POSITION,
        *_task_panels(metrics.values()),
        *LOOP_PANELS,
        *([STEP_PARTS] if has_parts else []),
        *_memory_panels(runs),
        *STABILITY_PANELS,
        *GATE_PANELS,
        *_corpora_panels(series),
    ]
    panels = [found for panel in panels if (found := _drop_empty_lines(panel, series)).lines]
    shown = {name for panel in panels for _, name in panel.lines}
    return [*panels, *_other_panels(series, shown)]


def _comparison_panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """Return the charts of a comparison, with a line per run and one metric each; memory is of one rank."""
    return [
        Panel(f"{panel.title}: {label}" if label else panel.title, panel.unit, (("", name),))
        for panel in make_panels(runs)
        for label, name in (panel.lines[:1] if panel.title in MEMORY.values() else panel.lines)
    ]


def _drop_empty_lines(panel: Panel, series: dict[str, Series]) -> Panel:
    lines = [(label, name) for label, name in panel.lines if name in series]
    return Panel(panel.title, panel.unit, tuple(lines[:NUM_COLORS]))


def _task_panels(metrics: Iterable[Metric]) -> Iterator[Panel]:
    for metric in metrics:
        if metric.name not in (name for _, name in (*LOSS.lines, *BY_POSITION.lines)):
            title = f"Evaluation: {metric.label}"
            yield _single_line_panel(title, PERCENT if metric.is_share else "", metric.name)


def _memory_panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    for kind, title in MEMORY.items():
        ranks = sorted({rank.rank for run in runs for rank in run.ranks if kind in rank.memory})
        yield Panel(title, "GiB", tuple((f"rank {rank}", PER_RANK[kind].format(rank)) for rank in ranks))


def _corpora_panels(series: dict[str, Series]) -> Iterator[Panel]:
    names = [name for name in series if name.startswith(CORPUS_SHARE)]
    lines = tuple((name.removeprefix(CORPUS_SHARE), name) for name in names)
    yield Panel("Tokens of each corpus", PERCENT, lines)


def _other_panels(series: dict[str, Series], shown: set[str]) -> list[Panel]:
    """Return a chart for each metric that changes and is not in `shown`, at most `MAX_OTHER` by name."""
    names = [
        name for name, found in series.items() if name not in shown and found.lowest[1] < found.highest[1]
    ]
    return [_single_line_panel(name, "", name) for name in sorted(names)[:MAX_OTHER]]
