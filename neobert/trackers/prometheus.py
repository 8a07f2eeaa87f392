"""Prometheus tracker: writes the latest metrics to a file for the textfile collector of node_exporter.

Names and units follow Prometheus' conventions: seconds and ratios instead of milliseconds and percent, and
`_total` for counters.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from neobert.atomic_write import write_atomically
from neobert.metric_names import CORPUS_SHARE, TOKENS
from neobert.trackers.tracker import Settings, TrackedRun, Tracker

FILE = "metrics.prom"
PREFIX = "neobert_"
FOREIGN = re.compile(r"[^a-zA-Z0-9_]+")
HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Suffix of a metric's name: suffix of the exported name, and factor of the value.
UNITS = (
    ("_ms", "_seconds", 1e-3),
    ("_percent", "_ratio", 1e-2),
    ("_per_sec", "_per_second", 1.0),
    ("_share", "_ratio", 1.0),
    ("/mfu", "/mfu_ratio", 1.0),
    ("/accuracy", "/accuracy_ratio", 1.0),
)
COUNTERS = {
    TOKENS: "train_tokens_total",
    "perf/recompiles": "perf_recompiles_total",
    "perf/kernel_fallbacks": "perf_kernel_fallbacks_total",
    "data/read_retries": "data_read_retries_total",
    "memory/alloc_retries": "memory_alloc_retries_total",
    "memory/out_of_memory": "memory_out_of_memory_total",
}


class PrometheusSession:
    """Prometheus session: rewrites the file atomically, with the latest value of each metric."""

    def __init__(self, run: TrackedRun) -> None:
        self._path = textfile_path(run.run_dir, run.settings)
        self._labels = {"run": run.name, "run_id": run.identity}
        self._values: dict[str, float] = {}
        self._step = run.first_step
        self._write(is_training=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the latest values. NaN replaces an earlier value; a metric that was always NaN is omitted."""
        self._values |= {
            name: value for name, value in values.items() if name in self._values or not math.isnan(value)
        }
        self._step = step
        self._write(is_training=True)

    def close(self) -> None:
        """Set the metric `training` to 0. The file remains, and the collector continues to export it."""
        self._write(is_training=False)

    def _write(self, *, is_training: bool) -> None:
        own = {
            "step": float(self._step),
            "training": float(is_training),
            "last_update_timestamp_seconds": time.time(),
        }
        lines = [*format_exposition(self._values, self._labels), *_format_gauges(own, self._labels)]
        write_atomically(self._path, ("\n".join(lines) + "\n").encode())


def textfile_path(run_dir: Path, settings: Settings) -> Path:
    """Return the path of the file: `prometheus.textfile` if set, else metrics.prom in the run directory."""
    named = settings["prometheus"]["textfile"]
    return Path(named).expanduser() if named else run_dir / FILE


def format_exposition(values: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the values in Prometheus' text format, grouped by metric family."""
    seen: set[str] = set()
    shares = {name: value for name, value in values.items() if name.startswith(CORPUS_SHARE)}
    for name, value in values.items():
        family, kind, factor = metric_family(name)
        if name in shares or family in seen:
            continue
        seen.add(family)
        yield from _format_family_header(family, kind, name)
        yield _format_sample(family, value * factor, labels)
    if shares:
        family = f"{PREFIX}data_corpus_ratio"
        yield from _format_family_header(family, "gauge", f"{CORPUS_SHARE}*")
        for name, value in shares.items():
            yield _format_sample(family, value, {**labels, "corpus": name.removeprefix(CORPUS_SHARE)})


def metric_family(name: str) -> tuple[str, str, float]:
    """Return the Prometheus name of a metric, its type (counter or gauge), and the factor for its values."""
    if name in COUNTERS:
        return PREFIX + COUNTERS[name], "counter", 1.0
    for suffix, exported, factor in UNITS:
        if name.endswith(suffix):
            return PREFIX + FOREIGN.sub("_", name.removesuffix(suffix) + exported), "gauge", factor
    return PREFIX + FOREIGN.sub("_", name), "gauge", 1.0


def _format_gauges(values: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"# TYPE {PREFIX}{name} gauge"
        yield _format_sample(PREFIX + name, value, labels)


def _format_family_header(family: str, kind: str, name: str) -> Iterator[str]:
    yield f"# HELP {family} {name.translate(HELP_ESCAPES)} of metrics.jsonl"
    yield f"# TYPE {family} {kind}"


def _format_sample(family: str, value: float, labels: Mapping[str, str]) -> str:
    named = ",".join(f'{name}="{text.translate(ESCAPES)}"' for name, text in labels.items())
    return f"{family}{{{named}}} {_format_number(value)}"


def _format_number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


PROMETHEUS = Tracker(
    name="prometheus",
    package=None,
    requirement="",
    start=PrometheusSession,
    folder=lambda run_dir, settings: textfile_path(run_dir, settings).parent,
    null=math.nan,  # the file keeps values: without it, the last finite loss would remain
)
