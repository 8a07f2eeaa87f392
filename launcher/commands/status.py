"""`status`: state of a run in one line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from launcher.rundir.directory import METRICS, is_alive, is_run_directory
from launcher.rundir.live_state import LOSS
from launcher.rundir.records import Record, first_and_last, last_beat, list_in, read_json, read_outcome
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.values import show_count, show_duration, show_number, to_json
from neobert.clock import boot_id, since_boot_s
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.printable import printable
from neobert.runfiles.run_dir import MANIFEST, OUTCOME

DIED = "died while in "
BETWEEN = "  "


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of a run. None: not reported yet.

    Attributes:
        phase: last phase that the trainer reported, or how the run ended.
        restarts: number of restarts in the latest launch.
        is_alive: None if the trainer runs on another host.
        heartbeat_age_s: seconds since the last heartbeat.
    """

    run: str
    phase: str
    step: int
    max_steps: int | None
    loss: float | None
    tokens_per_second: float | None
    eta_s: float | None
    minutes_since_checkpoint: float | None
    minutes_at_risk: float | None
    restarts: int
    is_alive: bool | None
    heartbeat_age_s: float | None


def run(folder: Path, output_format: str) -> int:
    """Print the state of the run; the command succeeds for a failed run too."""
    if not is_run_directory(folder):
        raise ProjectError(
            code="no-run-directory",
            message="not a run directory" if folder.exists() else "no such folder",
            hint="pass the folder of trainer.output_dir",
            place=str(folder),
            exit_code=EXIT_USAGE,
        )
    status = look_at(folder, datetime.now(UTC))
    text = fold(line(status), console.width(), BETWEEN)
    console.write(to_json(asdict(status)) if output_format == "json" else text)
    return EXIT_OK


def look_at(folder: Path, now: datetime) -> RunStatus:
    """Read the newest complete records of a run directory."""
    beat, outcome = last_beat(folder, 0), read_outcome(folder)
    has_ended = (folder / OUTCOME).exists()
    manifest, age_s = read_json(folder / MANIFEST), _age_s(beat, now)
    alive = False if has_ended else is_alive(manifest)
    at_risk_min = _at_risk_min(beat, 0.0 if has_ended else age_s)
    return RunStatus(
        run=str(folder),
        phase=_phase(beat, outcome, alive, has_ended=has_ended),
        step=int(outcome.get("step") or beat.get("step") or 0),
        max_steps=beat.get("max_steps"),
        loss=beat["loss"] if beat.get("loss") is not None else _last_loss(folder),
        tokens_per_second=beat.get("tokens_per_second"),
        eta_s=None if has_ended else beat.get("eta_s"),
        minutes_since_checkpoint=None if beat.get("last_checkpoint_step") is None else at_risk_min,
        minutes_at_risk=at_risk_min,
        restarts=len(list_in(manifest, "restarts")),
        is_alive=alive,
        heartbeat_age_s=age_s,
    )


def _phase(beat: Record, outcome: Record, alive: bool | None, *, has_ended: bool) -> str:
    if outcome:
        return str(outcome.get("status", "ended"))
    phase = str(beat.get("phase", "starting"))
    if has_ended:
        return f"ended, {OUTCOME} is damaged, last phase: {phase}"
    return f"{DIED}{phase}" if alive is False else phase


def _last_loss(folder: Path) -> float | None:
    return first_and_last(folder / METRICS, LOSS)[1].get(LOSS)


def _age_s(beat: Record, now: datetime) -> float | None:
    """Return the age of a heartbeat: by time since boot, or by time of day for another boot or host."""
    boot_s = beat.get("boot_s")
    if isinstance(boot_s, int | float) and beat.get("boot_id") == boot_id():
        return max(0.0, since_boot_s() - boot_s)
    try:
        return max(0.0, (now - datetime.fromisoformat(str(beat["ts_utc"]))).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None


def _at_risk_min(beat: Record, age_s: float | None) -> float | None:
    minutes = beat.get("work_at_risk_min")
    return None if minutes is None else minutes + (age_s or 0.0) / 60


def line(status: RunStatus) -> str:
    """Format the state as one line; a run that has ended has no ETA."""
    of = f"/{status.max_steps}" if status.max_steps else ""
    alive = {True: "alive", False: "not running", None: "on another host"}[status.is_alive]
    fields = [
        f"{status.run}: {status.phase}",
        f"step {status.step}{of}",
        f"loss {show_number(status.loss)}",
        f"{show_count(status.tokens_per_second)} tokens/s",
        *([f"eta {show_duration(status.eta_s)}"] if status.is_alive is not False else []),
        _checkpoint(status),
        *([f"restarts {status.restarts}"] if status.restarts else []),
        f"{alive}, {_heartbeat(status.heartbeat_age_s)}",
    ]
    return printable(BETWEEN.join(fields))


def _heartbeat(age_s: float | None) -> str:
    return "no heartbeat yet" if age_s is None else f"heartbeat {show_duration(age_s)} ago"


def _checkpoint(status: RunStatus) -> str:
    """Format the age of the checkpoint; for a run that has ended, relative to its end."""
    has_ended = status.is_alive is False and not status.phase.startswith(DIED)
    if status.minutes_at_risk is None:
        return "checkpoint -"
    if status.minutes_since_checkpoint is None:
        return f"no checkpoint yet, {status.minutes_at_risk:.1f} min at risk"
    return f"checkpoint {status.minutes_since_checkpoint:.1f} min {'before the end' if has_ended else 'ago'}"
