"""The progress bar of a run on a terminal."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from launcher.ui.numbers import show_count, show_duration, show_mib, show_number
from launcher.watch import EVAL_LOSS, LOSS, Watch, describe, memory_mib, minutes_at_risk

COLUMNS = (
    "{task.fields[phase]}",
    "loss {task.fields[loss]}",
    "{task.fields[speed]} tokens/s",
    "eta {task.fields[eta]}",
    "{task.fields[memory]}",
    "at risk {task.fields[risk]}",
)
UNKNOWN: dict[str, Any] = dict.fromkeys(("loss", "speed", "eta", "memory", "risk"), "-")


class ProgressView:
    """Steps, loss, speed, time left, memory, minutes since the last checkpoint; evaluations above it."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        out = Console(file=sys.stdout, no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        texts = [TextColumn(column) for column in COLUMNS]
        self.progress = Progress(
            texts[0], BarColumn(bar_width=24), MofNCompleteColumn(), *texts[1:], console=out
        )
        self.task = self.progress.add_task("", total=None, phase="starting", **UNKNOWN)
        self.progress.start()

    def refresh(self) -> None:
        """Show what is new."""
        beat = self.watch.heartbeat()
        for row in self.watch.metrics.read_new():
            if row.get(EVAL_LOSS) is not None:
                self.progress.console.print(describe(row, beat), highlight=False)
            if row.get(LOSS) is not None:
                speed = show_count(row.get("train/tokens_per_sec"))
                self.progress.update(self.task, loss=show_number(row[LOSS]), speed=speed)
        if beat:
            self.progress.update(
                self.task,
                completed=beat.get("step"),
                total=beat.get("max_steps"),
                phase=str(beat.get("phase", "-")),
                eta=show_duration(beat.get("eta_s")),
                memory=show_mib(memory_mib(beat)),
                risk=minutes_at_risk(beat),
            )

    def close(self) -> None:
        """Leave the bar as it ended."""
        self.refresh()
        self.progress.stop()
