"""Live view of a run: a progress bar on a terminal, plain lines elsewhere. Errors do not end the run."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from launcher.rundir.live_state import (
    LiveReader,
    evaluation_text,
    memory_mib,
    metrics_text,
    phase_text,
    time_since_save,
)
from launcher.rundir.records import Record, read_json
from launcher.rundir.run_status import ENDINGS, selecting_metric
from launcher.terminal import console
from launcher.terminal.fold import cut_end, fold
from launcher.terminal.metric_text import metric_label, short_value_text
from launcher.terminal.values import UNKNOWN, show_count, show_duration, show_mib, show_number
from neobert.metric_names import EVAL_LOSS, PACE, TRAIN_LOSS
from neobert.printable import printable
from neobert.progress import LOG_INTERVAL_S
from neobert.runfiles.phases import START
from neobert.runfiles.run_dir import RESOLVED

BETWEEN = "  "
PHASE_WIDTH = len("interrupted")
BAR_WIDTHS = ((140, 40), (110, 24), (80, 10))
"""Minimum width of the terminal and width of the bar, in columns; a later resize does not change the bar."""
FIELDS = {
    "count": "{}",
    "loss": "loss {}",
    "eval": "{}",
    "eta": "eta {}",
    "speed": "{} tokens/s",
    "elapsed": "elapsed {}",
    "memory": "{}",
    "save": "{}",
}
DROP_ORDER = ("memory", "save", "elapsed", "speed", "eta", "loss", "eval")
STARTING = "starting"
WITHOUT_ETA = (STARTING, START, *ENDINGS)
EVAL_LABELS = {EVAL_LOSS: "eval"}


class LiveView(Protocol):
    """Interface of a live display of a run."""

    def refresh(self) -> None:
        """Show the metrics and warnings that are new since the last call."""

    def close(self) -> None:
        """Show the remaining metrics and end the display."""


class PlainView:
    """View that writes one text line per line of metrics, and logs warnings."""

    def __init__(self, watch: LiveReader, write: Callable[[str], None]) -> None:
        self.watch = watch
        self.write = write
        self._shown_s = -math.inf

    def refresh(self) -> None:
        """Print warnings, progress of the start, and metrics since the last call."""
        beat = self.watch.heartbeat()
        for message in self.watch.new_warnings(beat):
            console.log(message)
        self._show_progress(beat.get("phase_doing"))
        for row in self.watch.metrics.read_new():
            self.write(metrics_text(row, beat, self.watch.max_steps))

    def _show_progress(self, doing: str | None) -> None:
        now_s = time.monotonic()
        if doing and now_s - self._shown_s >= LOG_INTERVAL_S:
            self._shown_s = now_s
            self.write(printable(doing))

    def close(self) -> None:
        """Print the metrics since the last refresh."""
        self.refresh()


class FaultTolerantView:
    """Wrapper that disables a view after its first error, such as a full disk, and lets the run continue."""

    def __init__(self, view: LiveView) -> None:
        self.view = view
        self.has_failed = False

    def refresh(self) -> None:
        """Refresh the view, unless it has failed before."""
        self._call_unless_failed(self.view.refresh)

    def close(self) -> None:
        """Close the view, unless it has failed before."""
        self._call_unless_failed(self.view.close)

    def _call_unless_failed(self, act: Callable[[], None]) -> None:
        if self.has_failed:
            return
        try:
            act()
        except Exception as error:
            self.has_failed = True
            console.log(printable(f"live view disabled, training continues: {error}"))


def make_view(watch: LiveReader, output_format: str, *, is_quiet: bool = False) -> LiveView:
    """Return a progress bar on a terminal, plain lines otherwise; with JSON output, lines go to stderr.

    A quiet view prints warnings only. Every view is disabled by its first error.
    """
    if is_quiet:
        return FaultTolerantView(PlainView(watch, lambda _: None))
    if output_format == "json":
        return FaultTolerantView(PlainView(watch, console.log))
    if console.is_terminal(sys.stdout):
        return FaultTolerantView(ProgressView(watch))
    return FaultTolerantView(PlainView(watch, console.write))


class ProgressView:
    """View with steps, losses, throughput and times in one updated line; evaluations are printed above it."""

    def __init__(self, watch: LiveReader) -> None:
        self.watch, self._begun_s = watch, time.monotonic()
        selecting = selecting_metric(read_json(watch.folder / RESOLVED))
        self._metric = EVAL_LOSS if selecting is None else selecting[0].name
        out = Console(file=sys.stdout, no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        self.bar_width = next((bar for columns, bar in BAR_WIDTHS if out.width >= columns), 0)
        column = BarColumn(bar_width=self.bar_width, complete_style="cyan", finished_style="green")
        bar = [column] if self.bar_width else []
        phase, text = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("phase", "text"))
        self.progress = Progress(phase, *bar, text, console=out)
        self.values = dict.fromkeys(FIELDS, UNKNOWN)
        self.task = self.progress.add_task("", total=None, phase="", text="")
        self._beat: Record = {
            "phase": STARTING, "step": max(0, watch.after_step), "max_steps": watch.max_steps,
        }  # fmt: skip
        self._update_bar(self._beat)
        self.progress.start()

    def refresh(self) -> None:
        """Print new warnings and evaluations, and update the bar."""
        beat = self.watch.heartbeat()
        for message in self.watch.new_warnings(beat):
            console.log(message)
        for row in self.watch.metrics.read_new():
            if line := evaluation_text(row, beat, self.watch.max_steps):
                text = fold(line, self.progress.console.width, BETWEEN)
                self.progress.console.print(text, highlight=False, markup=False)
            if row.get(TRAIN_LOSS) is not None:
                self.values["loss"] = show_number(row[TRAIN_LOSS])
                self.values["speed"] = show_count(row.get(PACE))
            if row.get(self._metric) is not None:
                self.values["eval"] = self._evaluation_text(row[self._metric])
        self._beat = beat or {**self._beat, "phase": STARTING, "phase_doing": None}
        self._update_bar(self._beat)

    def _evaluation_text(self, value: float) -> str:
        label = EVAL_LABELS.get(self._metric, metric_label(self._metric))
        return f"{label} {short_value_text(self._metric, value)}"

    def _update_bar(self, beat: Record) -> None:
        step, most = beat.get("step"), beat.get("max_steps")
        is_stepping = beat.get("phase") not in WITHOUT_ETA
        self.values |= {
            "count": f"{step or 0}/{most}" if most else UNKNOWN,
            "eta": show_duration(beat.get("eta_s")) if is_stepping else UNKNOWN,
            "elapsed": show_duration(time.monotonic() - self._begun_s),
            "memory": show_mib(memory_mib(beat)),
            "save": time_since_save(beat),
        }
        phase = printable(phase_text(beat)).ljust(PHASE_WIDTH)
        taken = len(phase) + 1 + (self.bar_width + 1 if self.bar_width else 0)
        room = self.progress.console.width - taken
        doing = cut_end(printable(beat.get("phase_doing") or ""), room, mark="")
        text = doing or join_fitting_fields(self.values, room)
        self.progress.update(self.task, completed=step, total=most, phase=phase, text=text)

    def close(self) -> None:
        """Update the bar once more, and stop redrawing it."""
        self.refresh()
        self.progress.stop()


def join_fitting_fields(values: Mapping[str, str], room: int) -> str:
    """Join the known values that fit into `room` columns, dropping the least important first."""
    shown = {name: form.format(values[name]) for name, form in FIELDS.items() if values[name] != UNKNOWN}
    for name in DROP_ORDER:
        if len(BETWEEN.join(shown.values())) <= room:
            break
        shown.pop(name, None)
    return BETWEEN.join(shown.values())
