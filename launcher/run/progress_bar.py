"""Progress bar of a run on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from launcher.rundir.live_state import EVAL_LOSS, LOSS, Watch, describe, memory_mib, minutes_at_risk
from launcher.rundir.records import Record
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.values import UNKNOWN, show_count, show_duration, show_mib, show_number
from neobert.printable import printable

BETWEEN = "  "
PHASE_WIDTH = len("interrupted")
BAR_WIDTHS = ((110, 24), (80, 10))
"""Terminal widths from which the bar has this width; it does not shrink while a run is shown."""
FIELDS = {
    "count": "{}",
    "loss": "loss {}",
    "speed": "{} tokens/s",
    "eta": "eta {}",
    "memory": "{}",
    "risk": "at risk {}",
}
FIRST_TO_GO = ("memory", "speed", "risk", "eta", "loss")


class ProgressView:
    """Steps, loss, throughput, ETA, memory and work at risk in one line; evaluations above it."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        out = Console(file=sys.stdout, no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        self.bar_width = next((bar for columns, bar in BAR_WIDTHS if out.width >= columns), 0)
        bar = [BarColumn(bar_width=self.bar_width)] if self.bar_width else []
        phase, text = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("phase", "text"))
        self.progress = Progress(phase, *bar, text, console=out)
        self.values = dict.fromkeys(FIELDS, UNKNOWN)
        self.task = self.progress.add_task("", total=None, phase="", text="")
        self._show({"phase": "starting", "step": max(0, watch.after_step), "max_steps": watch.max_steps})
        self.progress.start()

    def refresh(self) -> None:
        """Show new data."""
        beat = self.watch.heartbeat()
        for message in self.watch.new_warnings(beat):
            console.tell(message)
        for row in self.watch.metrics.read_new():
            if row.get(EVAL_LOSS) is not None:
                line = fold(describe(row, beat), self.progress.console.width, BETWEEN)
                self.progress.console.print(line, highlight=False, markup=False)
            if row.get(LOSS) is not None:
                self.values["loss"] = show_number(row[LOSS])
                self.values["speed"] = show_count(row.get("train/tokens_per_sec"))
        if beat:
            self._show(beat)

    def _show(self, beat: Record) -> None:
        step, most = beat.get("step"), beat.get("max_steps")
        self.values |= {
            "count": f"{step or 0}/{most}" if most else UNKNOWN,
            "eta": show_duration(beat.get("eta_s")),
            "memory": show_mib(memory_mib(beat)),
            "risk": minutes_at_risk(beat),
        }
        phase = _padded(str(beat.get("phase", "-")))
        taken = len(phase) + 1 + (self.bar_width + 1 if self.bar_width else 0)
        text = fitting_fields(self.values, self.progress.console.width - taken)
        self.progress.update(self.task, completed=step, total=most, phase=phase, text=text)

    def close(self) -> None:
        """Leave the bar in its last state."""
        self.refresh()
        self.progress.stop()


def fitting_fields(values: Mapping[str, str], room: int) -> str:
    """Join the known values that fit into `room` columns, dropping the least important first."""
    shown = {name: form.format(values[name]) for name, form in FIELDS.items() if values[name] != UNKNOWN}
    for name in FIRST_TO_GO:
        if len(BETWEEN.join(shown.values())) <= room:
            break
        shown.pop(name, None)
    return BETWEEN.join(shown.values())


def _padded(phase: str) -> str:
    return printable(phase).ljust(PHASE_WIDTH)
