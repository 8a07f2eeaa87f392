"""Charts of a report, with their title, unit and metrics.

Each metric of a `TaskSpec` gets a chart. Other metrics, e.g. of hooks, get charts under their own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from launcher.htmlreport.decimation import Series
from launcher.htmlreport.markup import NUM_COLORS
from launcher.htmlreport.run_record import PER_RANK, RunRecord
from neobert.metric_names import CORPUS_SHARE, EVAL, EVAL_LOSS, PACE, SOURCE, SPARSE, TRAIN_LOSS
from neobert.tasks.metric import LOSSES_BY_POSITION, Metric
from neobert.tasks.specs import metric_named

PERCENT = "%"
MAX_OTHER = 24
PARTS = ("data_wait", "copy", "forward", "backward", "clip", "optimizer", "other")
PAUSES = ("logging", "checkpoint", "evaluation")


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


def _single(title: str, unit: str, name: str) -> Panel:
    return Panel(title, unit, (("", name),))


def _times(parts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((part.replace("_", " "), f"time/{part}_ms") for part in parts)


def _sparse(kind: str, *names: str) -> tuple[tuple[str, str], ...]:
    prefix = f"{kind}_" if kind else ""
    return tuple((name.replace("_", " "), f"{SPARSE}{prefix}{name}") for name in names)


LOSS = Panel("Loss", "", (("training", TRAIN_LOSS), ("evaluation", EVAL_LOSS)))
BY_POSITION = Panel(
    "Evaluation: loss by position in the document",
    "",
    tuple((each.label.removeprefix("loss_").replace("_", " to "), each.name) for each in LOSSES_BY_POSITION),
)
OF_THE_LOOP = (
    _single("Learning rate", "", "train/learning_rate"),
    _single("Gradient norm", "", "train/grad_norm"),
    _single("Throughput", "tokens/s", PACE),
    _single("MFU", PERCENT, "perf/mfu"),
    Panel("Step time", "ms", _times(("step", "data_wait"))),
    _single("Share of steps that waited for the host", PERCENT, "perf/host_bound_share"),
)
AFTER_MEMORY = (
    Panel("Pauses between steps", "ms", _times(PAUSES)),
    _single("Weight norm", "", "train/weight_norm"),
    _single("Largest attention logit", "", "train/max_attention_logit"),
)
OF_GATES = (
    Panel("Gates: mean share of each branch", PERCENT, _sparse("branch_share", "cmp", "slc", "swa")),
    Panel(
        "Gates: closed or open, most saturated layer", PERCENT, _sparse("gate_saturated", "cmp", "slc", "swa")
    ),
    Panel("Gates: entropy, largest share", "", _sparse("", "gate_entropy_mean", "max_gate_mean")),
    Panel("Gates: dead layers, collapsed tokens", PERCENT, _sparse("", "dead_layers", "collapse_fraction")),
    Panel("Selected blocks that a token chose", PERCENT, _sparse("", "free_share", "pct_at_max")),
    Panel("Selected blocks: predicted, read", "", _sparse("", "reads_pred", "reads_act_total")),
)
MEMORY = {"gpu": "GPU memory reserved, per rank", "host": "Host memory (RSS), per rank"}
STEP_PARTS = Panel("Parts of a step", "ms", _times(PARTS))


def panels_of(runs: Sequence[RunRecord]) -> list[Panel]:
    """Return the charts that have data in at least one of the runs."""
    series = {name: found for run in reversed(runs) for name, found in run.series.items()}
    metrics = {metric.name: metric for run in runs for metric in run.metrics}
    evaluated = sorted(name for name in series if name.startswith(EVAL) and not name.startswith(SOURCE))
    metrics |= {name: metric_named(name) for name in evaluated if name not in metrics}
    has_parts = "time/forward_ms" in series
    panels = [
        LOSS,
        BY_POSITION,
        *_task_panels(metrics.values()),
        *OF_THE_LOOP,
        *([STEP_PARTS] if has_parts else []),
        *_memory_panels(runs),
        *AFTER_MEMORY,
        *OF_GATES,
        *_corpora_panels(series),
    ]
    panels = [found for panel in panels if (found := _with_data(panel, series)).lines]
    shown = {name for panel in panels for _, name in panel.lines}
    return [*panels, *_other_panels(series, shown)]


def single_panels_of(runs: Sequence[RunRecord]) -> list[Panel]:
    """Return the charts of a comparison, with one line per run; of several ranks, the first is shown."""
    return [
        Panel(f"{panel.title}: {label}" if label else panel.title, panel.unit, (("", name),))
        for panel in panels_of(runs)
        for label, name in (panel.lines[:1] if panel.title in MEMORY.values() else panel.lines)
    ]


def _with_data(panel: Panel, series: dict[str, Series]) -> Panel:
    lines = [(label, name) for label, name in panel.lines if name in series]
    return Panel(panel.title, panel.unit, tuple(lines[:NUM_COLORS]))


def _task_panels(metrics: Iterable[Metric]) -> Iterator[Panel]:
    for metric in metrics:
        if metric.name not in (name for _, name in (*LOSS.lines, *BY_POSITION.lines)):
            title = f"Evaluation: {metric.label}"
            yield _single(title, PERCENT if metric.is_share else "", metric.name)


def _memory_panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    for kind, title in MEMORY.items():
        ranks = sorted({rank.rank for run in runs for rank in run.ranks if kind in rank.memory})
        yield Panel(title, "GiB", tuple((f"rank {rank}", PER_RANK[kind].format(rank)) for rank in ranks))


def _corpora_panels(series: dict[str, Series]) -> Iterator[Panel]:
    names = [name for name in series if name.startswith(CORPUS_SHARE)]
    lines = tuple((name.removeprefix(CORPUS_SHARE), name) for name in names)
    yield Panel("Tokens of each corpus", PERCENT, lines)


def _other_panels(series: dict[str, Series], shown: set[str]) -> list[Panel]:
    """Return a chart for each remaining metric that changes, at most `MAX_OTHER`."""
    names = [
        name for name, found in series.items() if name not in shown and found.lowest[1] < found.highest[1]
    ]
    return [_single(name, "", name) for name in sorted(names)[:MAX_OTHER]]
