"""Progress of a run from its files, as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launcher.rundir.directory import is_from_earlier_session
from launcher.rundir.records import MetricsTail, Record, last_heartbeat, read_json
from launcher.terminal.metric_text import metric_text
from launcher.terminal.values import UNKNOWN, show_count, show_duration, show_mib
from neobert.metric_names import EVAL, PACE, TRAIN_LOSS
from neobert.printable import printable
from neobert.runfiles.run_dir import MANIFEST, METRICS
from neobert.tasks.metric import show_number


@dataclass(slots=True)
class LiveReader:
    """Incremental reader of a run's heartbeats, metrics and warnings."""

    folder: Path
    after_step: int
    max_steps: int | None = None
    metrics: MetricsTail = field(init=False)
    _before: Record = field(init=False)
    _shown_warnings: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._before = last_heartbeat(self.folder, 0)
        self.metrics = MetricsTail(self.folder / METRICS, self.after_step)
        self.metrics.skip_existing()

    def heartbeat(self) -> Record:
        """Return rank 0's newest heartbeat of this session, or an empty record before the first one."""
        beat = last_heartbeat(self.folder, 0)
        is_earlier = _is_earlier(beat, self._before)
        return {} if is_earlier or is_from_earlier_session(beat, read_json(self.folder / MANIFEST)) else beat

    def new_warnings(self, beat: Record) -> list[str]:
        """Return the messages of the heartbeat's warnings whose kinds no earlier call returned."""
        messages: dict[str, str] = beat.get("warning_messages") or {}
        new = {name: message for name, message in messages.items() if name not in self._shown_warnings}
        self._shown_warnings |= new.keys()
        return [printable(f"warning: {message}") for message in new.values()]


def _is_earlier(beat: Record, before: Record) -> bool:
    """Return whether `beat` is not newer than `before`. A resumed trainer continues the sequence numbers."""
    seq, newest_seq = beat.get("seq"), before.get("seq")
    return beat == before or (seq is not None and newest_seq is not None and seq <= newest_seq)


def metrics_text(row: Record, beat: Record, max_steps: int | None = None) -> str:
    """Format a line of metrics with the latest heartbeat, the losses first.

    `max_steps` is shown while there is no heartbeat, as after a restart.
    """
    words = [_step_text(row, beat, max_steps)]
    if row.get(TRAIN_LOSS) is not None:
        words.append(f"loss {show_number(row[TRAIN_LOSS])}")
    words += _evaluation_values(row)
    if row.get(TRAIN_LOSS) is not None:
        words.append(f"{show_count(row.get(PACE))} tokens/s")
        words.append(f"eta {show_duration(beat.get('eta_s'))}")
        words.append(f"memory {show_mib(memory_mib(beat))}")
        words.append(time_since_save(beat))
    return printable("  ".join(words))


def evaluation_text(row: Record, beat: Record, max_steps: int | None = None) -> str:
    """Format the evaluation in a line of metrics; empty if the line has none.

    `max_steps` is shown while there is no heartbeat.
    """
    words = _evaluation_values(row)
    return printable("  ".join([_step_text(row, beat, max_steps), *words])) if words else ""


def _step_text(row: Record, beat: Record, max_steps: int | None) -> str:
    return f"step {row['step']}/{beat.get('max_steps') or max_steps or '?'}"


def _evaluation_values(row: Record) -> list[str]:
    return [metric_text(name, value) for name, value in row.items() if name.startswith(EVAL)]


def phase_text(beat: Record) -> str:
    """Return the phase as text, with any progress: `eval 40%`, or `eval 12` if the total is not known."""
    phase, done, total = str(beat.get("phase", UNKNOWN)), beat.get("phase_done"), beat.get("phase_total")
    if done is None:
        return phase
    return f"{phase} {min(1.0, done / total):.0%}" if total else f"{phase} {done}"


def gates_text(beat: Record) -> str:
    """Format the gates of native sparse attention, as `gates cmp 33%, slc 34%, swa 33%`; empty if unknown."""
    sparse = beat.get("nsa") or {}
    shares = [(name, sparse.get(f"branch_share_{name}")) for name in ("cmp", "slc", "swa")]
    if any(share is None for _, share in shares):
        return ""
    dead = sparse.get("dead_layers", 0)
    return f"gates {', '.join(f'{name} {share:.0%}' for name, share in shares)}" + (
        f" (dead in {dead:.0%} of the layers)" if dead else ""
    )


def memory_mib(beat: Record) -> float | None:
    """Return the reserved device memory in MiB, on a CPU the memory of the process; None if unknown."""
    reserved = beat.get("gpu_mem_reserved_mib")
    used_mib: float | None = reserved if reserved is not None else beat.get("host_rss_mib")
    return used_mib


def time_since_save(beat: Record) -> str:
    """Format the time since the last checkpoint, or since the start if there is none; `-` if unknown."""
    minutes = beat.get("work_at_risk_min")
    if minutes is None:
        return UNKNOWN
    age = show_duration(60 * minutes)
    return f"unsaved {age}" if beat.get("last_checkpoint_step") is None else f"saved {age} ago"
