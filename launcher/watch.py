"""Watch a run from outside: what its files say, put into the words that a person follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launcher.records import MetricsTail, Record, last_beat
from launcher.rundir import METRICS
from launcher.ui.numbers import show_count, show_duration, show_mib
from neobert.printable import printable

LOSS = "train/loss"
EVAL_LOSS = "eval/loss"


@dataclass(slots=True)
class Watch:
    """Reads a run's files a little at a time."""

    folder: Path
    after_step: int
    metrics: MetricsTail = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = MetricsTail(self.folder / METRICS, self.after_step)
        self.metrics.skip_existing()

    def heartbeat(self) -> Record:
        """The newest heartbeat of rank 0."""
        return last_beat(self.folder, 0)


def describe(row: Record, beat: Record) -> str:
    """A line of metrics, with the latest heartbeat, in words."""
    words = [f"step {row['step']}/{beat.get('max_steps') or '?'}"]
    if row.get(LOSS) is not None:
        words += [f"loss {row[LOSS]:.4f}", f"{show_count(row.get('train/tokens_per_sec'))} tokens/s"]
        words.append(f"eta {show_duration(beat.get('eta_s'))}")
        words.append(f"memory {show_mib(memory_mib(beat))}")
        words.append(f"at risk {minutes_at_risk(beat)}")
    if row.get(EVAL_LOSS) is not None:
        words.append(f"eval loss {row[EVAL_LOSS]:.4f}")
    return printable("  ".join(words))


def memory_mib(beat: Record) -> float | None:
    """Memory of the device, or of the process where there is none."""
    reserved = beat.get("gpu_mem_reserved_mib")
    found: float | None = reserved if reserved is not None else beat.get("host_rss_mib")
    return found


def minutes_at_risk(beat: Record) -> str:
    """Minutes since the last checkpoint."""
    minutes = beat.get("work_at_risk_min")
    return "-" if minutes is None else f"{minutes:.1f} min"
