"""State of a run, from its files."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.rundir.directory import is_alive, is_from_earlier_session
from launcher.rundir.live_state import gates_text
from launcher.rundir.records import (
    Record,
    failure_reason,
    get_list,
    iterate_lines,
    last_heartbeat,
    outcome_for_state,
    parse_metrics,
    read_json,
    read_outcome,
)
from launcher.terminal.metric_text import metric_label, short_value_text
from launcher.terminal.values import UNKNOWN, show_count
from neobert.clock import boot_id, seconds_since_boot
from neobert.metric_names import EVAL, EVAL_LOSS, SOURCE, SOURCE_LOSS, TRAIN_LOSS
from neobert.runfiles.run_dir import MANIFEST, METRICS, OUTCOME, RESOLVED
from neobert.tasks.metric import Metric, best_step
from neobert.tasks.specs import SPECS, find_metric

DIED = "died while in "
DISK_FULL = " (disk full, see logs/ for the reason)"
FULL_BELOW_BYTES = 64 * 1024
NEWEST_LINES = 8
"""Number of lines that are searched for the newest loss: the last one may be incomplete."""
SILENT_AFTER_S = 120.0
"""Twelve heartbeats: for a run on another host, they are the only sign of life."""
STATE_COLOURS = {
    "running": "cyan", "starting": "cyan", "finished": "green", "failed": "red", "died": "red",
    "preempted": "yellow", "interrupted": "yellow", "silent": "yellow",
}  # fmt: skip
ENDINGS = ("finished", "preempted", "interrupted", "failed")
RUNNING = ("running", "starting")


@dataclass(frozen=True, slots=True)
class BestEvaluation:
    """Best value of the metric that selects checkpoints, or else the task's first metric."""

    metric: str
    value: float
    step: int


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of a run. A value is None if it was not reported yet.

    Attributes:
        state: starting, running, silent, died, finished, preempted, interrupted, failed, or ended (outcome
            unknown). A silent run is on another or an unknown host and has not written for two minutes.
        phase: last phase that the trainer reported, or how the run ended.
        evaluation: metrics of the newest evaluation, and its step.
        minutes_since_checkpoint: None before the first checkpoint, and while a session starts.
        minutes_at_risk: training time since the last checkpoint, or since the start before the first one.
        restarts: number of restarts in the latest launch.
        is_alive: None if the trainer runs on another host, or its host is not known.
        hostname: host of the launch; empty if manifest.json is missing or damaged.
        heartbeat_age_s: time since the last heartbeat.
        gates: gates of native sparse attention as text; empty for another model.
        reason: why the run failed, with the code of the error; empty if it did not fail.
    """

    run: str
    state: str
    phase: str
    step: int
    max_steps: int | None
    tokens_total: int | None
    loss: float | None
    tokens_per_second: float | None
    evaluation: dict[str, float]
    evaluation_step: int | None
    best: BestEvaluation | None
    eta_s: float | None
    minutes_since_checkpoint: float | None
    minutes_at_risk: float | None
    restarts: int
    is_alive: bool | None
    hostname: str
    heartbeat_age_s: float | None
    gates: str
    reason: str


@dataclass(frozen=True, slots=True)
class History:
    """Evaluations of a run, and its newest training metrics.

    Attributes:
        trained: the newest line with a training loss; empty if there is none.
        evaluations: lines with an evaluation, the newest last.
    """

    trained: Record = field(default_factory=dict)
    evaluations: Sequence[Record] = ()

    @classmethod
    def read(cls, path: Path) -> History:
        """Read a metrics file, without keeping its training lines."""
        trained, evaluations = deque[bytes](maxlen=NEWEST_LINES), []
        for line in iterate_lines(path):
            if b'"train/loss"' in line:
                trained.append(line)
            if b'"eval/' in line and "step" in (record := parse_metrics(line) or {}):
                evaluations.append(record)
        newest = (parse_metrics(line) or {} for line in reversed(trained))
        return cls(next((line for line in newest if TRAIN_LOSS in line and "step" in line), {}), evaluations)


def read_status(folder: Path, now: datetime, history: History | None = None) -> RunStatus:
    """Return the state of a run at the time `now`, from the newest complete records in its directory.

    `history`: metrics that were already read; None to read them from the file.
    """
    manifest, config = read_json(folder / MANIFEST), read_json(folder / RESOLVED)
    outcome, has_ended = outcome_for_state(read_outcome(folder), manifest), (folder / OUTCOME).exists()
    beat = last_heartbeat(folder, 0)
    age_s = compute_heartbeat_age_s(beat, now)
    alive = False if has_ended else is_alive(manifest)
    is_starting = not beat or (alive is True and is_from_earlier_session(beat, manifest))
    # A session that starts has no work to lose yet: the time since the earlier session does not count.
    at_risk_min = None if is_starting else _minutes_at_risk(beat, 0.0 if has_ended else age_s)
    history = history or History.read(folder / METRICS)
    newest = history.evaluations[-1] if history.evaluations else {}
    return RunStatus(
        run=str(folder),
        state=_state_name(outcome, alive, age_s, has_ended=has_ended, is_starting=is_starting),
        phase=_phase_name({} if is_starting else beat, outcome, alive, has_ended=has_ended, folder=folder),
        step=int(outcome.get("step") or beat.get("step") or history.trained.get("step") or 0),
        max_steps=beat.get("max_steps"),
        tokens_total=beat.get("tokens_total"),
        loss=beat["loss"] if beat.get("loss") is not None else history.trained.get(TRAIN_LOSS),
        tokens_per_second=beat.get("tokens_per_second"),
        evaluation=evaluation_metrics(newest),
        evaluation_step=newest.get("step"),
        best=find_best(config, history),
        eta_s=None if has_ended or is_starting else beat.get("eta_s"),
        minutes_since_checkpoint=None if beat.get("last_checkpoint_step") is None else at_risk_min,
        minutes_at_risk=at_risk_min,
        restarts=len(get_list(manifest, "restarts")),
        is_alive=alive,
        hostname=str(manifest.get("hostname") or ""),
        heartbeat_age_s=age_s,
        gates=gates_text(beat),
        reason=failure_reason({**outcome, "message": str(outcome.get("message", "")).partition("\n")[0]}),
    )


def evaluation_metrics(line: Record) -> dict[str, float]:
    """Return the metrics of an evaluation; for the earlier text of a continued model, only the loss."""
    return {
        name: value
        for name, value in line.items()
        if name == SOURCE_LOSS or (name.startswith(EVAL) and not name.startswith(SOURCE))
    }


def compute_heartbeat_age_s(beat: Record, now: datetime) -> float | None:
    """Return the age of a heartbeat in seconds, or None if it has no valid time.

    Compares times since boot, or times of day for a heartbeat of another boot or host.
    """
    boot_s = beat.get("boot_s")
    if isinstance(boot_s, int | float) and beat.get("boot_id") == boot_id():
        return max(0.0, seconds_since_boot() - boot_s)
    try:
        return max(0.0, (now - datetime.fromisoformat(str(beat["ts_utc"]))).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None


def selecting_metric(config: Record) -> tuple[Metric, bool] | None:
    """Return the metric that selects the best evaluation, and whether higher is better.

    Returns None if the task of the config is unknown.
    """
    spec = SPECS.get(str(config.get("task")))
    if spec is None:
        return None
    section = config.get("trainer")
    trainer: dict[str, Any] = section if isinstance(section, dict) else {}
    name = trainer.get("metric_for_best_model")
    metric = spec.metrics[0] if name is None else find_metric(str(name))
    requested = trainer.get("greater_is_better")
    return metric, requested if isinstance(requested, bool) else metric.is_higher_better


def best_text(best: BestEvaluation | None) -> str:
    """Format the best value with its step, and with its name unless it is the loss; `-` for None."""
    if best is None:
        return UNKNOWN
    label = "" if best.metric == EVAL_LOSS else f"{metric_label(best.metric)} "
    return f"{label}{short_value_text(best.metric, best.value)} @{show_count(best.step)}"


def find_best(config: Record, history: History) -> BestEvaluation | None:
    """Return the best evaluation of a run, or None if there is none or its metric is unknown.

    The evaluation before training counts only if it is the only one, as for early stopping and
    `checkpoints/best`: an untrained head may be right by chance.

    Args:
        config: content of the run's resolved.json.
    """
    selecting = selecting_metric(config)
    if selecting is None:
        return None
    metric, is_higher_better = selecting
    evaluated = {line["step"]: line for line in history.evaluations}
    by_step = {step: line for step, line in evaluated.items() if step} or evaluated
    step = best_step(by_step, metric.name, is_higher_better=is_higher_better)
    return None if step is None else BestEvaluation(metric.name, by_step[step][metric.name], step)


def _state_name(
    outcome: Record, alive: bool | None, age_s: float | None, *, has_ended: bool, is_starting: bool
) -> str:
    if has_ended:
        status = outcome.get("status")
        return str(status) if status in ENDINGS else "ended"
    if alive is False:
        return "died"
    if alive is None and (age_s is None or age_s > SILENT_AFTER_S):
        return "silent"
    return "starting" if is_starting else "running"


def _phase_name(beat: Record, outcome: Record, alive: bool | None, *, has_ended: bool, folder: Path) -> str:
    if outcome:
        return str(outcome.get("status", "ended"))
    phase = str(beat.get("phase", "starting"))
    if has_ended:
        return f"ended, {OUTCOME} is damaged, last phase: {phase}"
    if alive is False:
        ended = f"{phase}, without {OUTCOME}" if phase in ENDINGS else f"{DIED}{phase}"
        return f"{ended}{_full_disk_note(folder)}"
    return phase


def _full_disk_note(folder: Path) -> str:
    """Return a note if the run's disk is full, which may be why there is no outcome; else an empty string."""
    with suppress(OSError):
        return DISK_FULL if shutil.disk_usage(folder).free < FULL_BELOW_BYTES else ""
    return ""


def _minutes_at_risk(beat: Record, age_s: float | None) -> float | None:
    minutes = beat.get("work_at_risk_min")
    return None if minutes is None else minutes + (age_s or 0.0) / 60
