"""Progress of a run from its files, as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launcher.rundir.directory import METRICS
from launcher.rundir.records import MetricsTail, Record, last_beat
from launcher.terminal.values import show_count, show_duration, show_mib
from neobert.printable import printable

LOSS = "train/loss"
EVAL_LOSS = "eval/loss"


@dataclass(slots=True)
class Watch:
    """Reads a run's files a little at a time."""

    folder: Path
    after_step: int
    max_steps: int | None = None
    metrics: MetricsTail = field(init=False)
    _before: Record = field(init=False)
    _shown_warnings: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._before = last_beat(self.folder, 0)
        self.metrics = MetricsTail(self.folder / METRICS, self.after_step)
        self.metrics.skip_existing()

    def heartbeat(self) -> Record:
        """Return the newest heartbeat of rank 0 of this launch; empty before the first."""
        beat = last_beat(self.folder, 0)
        return {} if _is_earlier(beat, self._before) else beat

    def new_warnings(self, beat: Record) -> list[str]:
        """Return the messages of new kinds of warnings."""
        messages: dict[str, str] = beat.get("warning_messages") or {}
        new = {name: message for name, message in messages.items() if name not in self._shown_warnings}
        self._shown_warnings |= new.keys()
        return [printable(f"warning: {message}") for message in new.values()]


def _is_earlier(beat: Record, before: Record) -> bool:
    """Return whether a heartbeat is from before. A resumed trainer continues the sequence numbers."""
    seq, newest_seq = beat.get("seq"), before.get("seq")
    return beat == before or (seq is not None and newest_seq is not None and seq <= newest_seq)


def describe(row: Record, beat: Record) -> str:
    """Format a line of metrics with the latest heartbeat."""
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
    """Return the memory of the device, or of the process without one."""
    reserved = beat.get("gpu_mem_reserved_mib")
    found: float | None = reserved if reserved is not None else beat.get("host_rss_mib")
    return found


def minutes_at_risk(beat: Record) -> str:
    """Return the minutes since the last checkpoint as text."""
    minutes = beat.get("work_at_risk_min")
    return "-" if minutes is None else f"{minutes:.1f} min"
