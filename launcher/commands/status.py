"""`status`: how a run stands, in one line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from launcher.report.formats.json import to_json
from launcher.rundir.directory import METRICS, is_alive, is_run_directory
from launcher.rundir.live_state import LOSS
from launcher.rundir.records import Record, first_and_last, last_beat, list_in, read_json, read_outcome
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.numbers import show_count, show_duration, show_number
from neobert.clock import boot_id, since_boot_s
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.printable import printable
from neobert.runfiles.location import MANIFEST
from neobert.runfiles.outcome import FILE_NAME as OUTCOME

DIED = "died while in "
BETWEEN = "  "


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands. None: nothing has said so yet.

    Attributes:
        phase: the last one that the trainer announced, or how the run ended.
        restarts: sessions that the latest launch has begun again.
        is_alive: None where the trainer runs on another host.
        heartbeat_age_s: seconds since the trainer last said anything.
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
    """Print how the run stands; a run that failed is no error of this command."""
    if not is_run_directory(folder):
        raise ProjectError(
            code="no-run-directory",
            message="this is no run directory" if folder.exists() else "there is no such folder",
            hint="name the folder that trainer.output_dir named",
            place=str(folder),
            exit_code=EXIT_USAGE,
        )
    standing = look_at(folder, datetime.now(UTC))
    told = fold(line(standing), console.width(), BETWEEN)
    console.write(to_json(asdict(standing)) if output_format == "json" else told)
    return EXIT_OK


def look_at(folder: Path, now: datetime) -> Standing:
    """Read the newest whole line of everything."""
    beat, outcome = last_beat(folder, 0), read_outcome(folder)
    has_ended = (folder / OUTCOME).exists()
    manifest, age_s = read_json(folder / MANIFEST), _age_s(beat, now)
    alive = False if has_ended else is_alive(manifest)
    at_risk_min = _at_risk_min(beat, 0.0 if has_ended else age_s)
    return Standing(
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
        return f"ended, {OUTCOME} is damaged, last heard: {phase}"
    return f"{DIED}{phase}" if alive is False else phase


def _last_loss(folder: Path) -> float | None:
    return first_and_last(folder / METRICS, LOSS)[1].get(LOSS)


def _age_s(beat: Record, now: datetime) -> float | None:
    """Prefer the clock that nobody sets; times of day compare with those of another boot, or host."""
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


def line(standing: Standing) -> str:
    """The one line; a run that is over has no time left to tell."""
    of = f"/{standing.max_steps}" if standing.max_steps else ""
    alive = {True: "alive", False: "not running", None: "on another host"}[standing.is_alive]
    words = [
        f"{standing.run}: {standing.phase}",
        f"step {standing.step}{of}",
        f"loss {show_number(standing.loss)}",
        f"{show_count(standing.tokens_per_second)} tokens/s",
        *([f"eta {show_duration(standing.eta_s)}"] if standing.is_alive is not False else []),
        _checkpoint(standing),
        *([f"restarts {standing.restarts}"] if standing.restarts else []),
        f"{alive}, {_heard(standing.heartbeat_age_s)}",
    ]
    return printable(BETWEEN.join(words))


def _heard(age_s: float | None) -> str:
    return "not heard yet" if age_s is None else f"heard {show_duration(age_s)} ago"


def _checkpoint(standing: Standing) -> str:
    """Of a run that ended itself: what that cost, not when it was."""
    has_ended = standing.is_alive is False and not standing.phase.startswith(DIED)
    if standing.minutes_at_risk is None:
        return "checkpoint -"
    if standing.minutes_since_checkpoint is None:
        return f"no checkpoint yet, {standing.minutes_at_risk:.1f} min at risk"
    return (
        f"checkpoint {standing.minutes_since_checkpoint:.1f} min {'before the end' if has_ended else 'ago'}"
    )
