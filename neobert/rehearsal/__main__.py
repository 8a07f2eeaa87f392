"""One rank of a rehearsal: `python -m neobert.rehearsal fresh|resumed RESOLVED.json FOLDER`.

FOLDER belongs to the rehearsal alone. It holds the run directory; every rank writes its stage to
`stage_rank<k>` and its results to `fresh_rank<k>.json` or `resumed_rank<k>.json`. Then it hangs on purpose,
between two steps, until it is killed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neobert.config.schema import RunConfig
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.plan.epochs import epoch_size, plan_steps
from neobert.rehearsal.script import FOLDER, Script, lay_out, rehearsed, script_for, stand_ins
from neobert.train import configure_logging, leave, read_config, report, unexpected
from neobert.training.loop.signals import Signals

if TYPE_CHECKING:
    from neobert.training.state.trainer import Trainer

log = logging.getLogger("neobert.rehearsal")

RESUMED = "resumed"
PATIENCE_S = 120.0
POLL_S = 0.02

Linger = Callable[["Trainer"], None]


def main(arguments: list[str]) -> int:
    """Rehearse; a failure is reported to the parent as the trainer's are."""
    configure_logging()
    signals = Signals()
    try:
        with signals.installed():
            name, resolved, folder = arguments
            return rehearse(name, read_config(Path(resolved)), Path(folder), signals)
    except ProjectError as error:
        return report(error)
    except Exception as error:
        log.exception("the rehearsal failed")
        return report(unexpected(error, Path(arguments[-1])))


def hang(trainer: Trainer) -> None:
    """Wait to be killed, without further steps."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        trainer.signals.raise_if_requested()
        time.sleep(POLL_S)
    raise ProjectError(
        "REH002",
        f"the rehearsal was not ended within {PATIENCE_S:g} s of its last step",
        exit_code=EXIT_TRAINING_FAILED,
    )


def rehearse(name: str, requested: RunConfig, folder: Path, signals: Signals, linger: Linger = hang) -> int:
    """Lay the run directory out, and run the session with an observer. `linger` ends the rehearsal."""
    from torch import OutOfMemoryError

    from neobert.rehearsal.measurements import recording_reads
    from neobert.training.loop.session import run_session

    script = script_for(plan_steps(requested, epoch_size(requested)).value)
    replaced = stand_ins(requested, folder / FOLDER, script, is_resumed=name == RESUMED)
    config = rehearsed(requested, replaced)
    rank = int(os.environ.get("RANK", "0"))
    run_dir = lay_out(config) if rank == 0 else Path(config.trainer.output_dir)
    out, stage = folder / f"{name}_rank{rank}.json", folder / f"stage_rank{rank}"
    observer = _observer(name, script, out, stage, linger)
    stage.write_text("preparing the text, building the model", encoding="utf-8")
    with recording_reads() as keys:
        observer.seen |= {"keys_read": keys, "keys_replaced": sorted(replaced)}
        try:
            run_session(config, run_dir, signals, observer.attach)
        except OutOfMemoryError as error:
            message = str(error).splitlines()[0]
            _write(out, observer.seen | {"out_of_memory": f"{stage.read_text(encoding='utf-8')}: {message}"})
    return EXIT_TRAINING_FAILED


def _observer(name: str, script: Script, out: Path, stage: Path, linger: Linger) -> Any:
    from neobert.rehearsal.observers import Fresh, Resumed

    def finish(trainer: Trainer, seen: dict[str, Any]) -> None:
        _write(out, seen)
        linger(trainer)

    def say(text: str) -> None:
        stage.write_text(text, encoding="utf-8")

    return (Resumed if name == RESUMED else Fresh)(script, finish, say)


def _write(path: Path, seen: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(seen, default=sorted), encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
