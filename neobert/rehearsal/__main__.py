"""One rank of a rehearsal: `python -m neobert.rehearsal fresh|resumed|resumed_again RESOLVED.json FOLDER`.

FOLDER contains the run directories of the uninterrupted run (`fresh`) and of both resumed runs, and files for
communication with the parent process. Every rank writes its current stage to `NAME_stage_rank<k>` and its
results to `NAME_rank<k>.json`, then waits between two steps until it is killed.

The uninterrupted run also writes `compiled_rank<k>.json` when its step is compiled and, after it has
measured, `measured_rank<k>.json`, and waits until the parent removes that one. While `helper_at_work`
exists, a helper compiles the evaluation, and this run waits for it. While `others_at_work` exists, the
parent runs other checks or warms up another process, and this run waits before it measures.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from pathlib import Path

from neobert.config.schema import RunConfig
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.plan.epoch_size import epoch_size
from neobert.plan.epochs import plan_steps
from neobert.rehearsal.parent import POLL_S, ParentChannel
from neobert.rehearsal.script import (
    FOLDER,
    RESUMED_FOLDER,
    copy_run_in_progress,
    create_run_directory,
    plan_rehearsal,
    rehearsal_config,
    rehearsal_values,
)
from neobert.train import configure_logging, exit_process, read_config, report_error, unexpected_error
from neobert.training.loop.signals import Signals

log = logging.getLogger("neobert.rehearsal")

FRESH, RESUMED, RESUMED_AGAIN = "fresh", "resumed", "resumed_again"
ORPHANED_S = 2.0


def main(arguments: list[str]) -> int:
    """Run one rank of the rehearsal; return the exit code. Errors are reported to the parent process."""
    configure_logging()
    signals, parent = Signals(), os.getppid()
    try:
        with signals.handle_signals():
            name, resolved, folder = arguments
            return rehearse(name, read_config(Path(resolved)), Path(folder), signals)
    except ProjectError as error:
        return report_error(error)
    except Exception as error:
        log.exception("the rehearsal failed")
        return report_error(unexpected_error(error))
    finally:
        if signals.requested is not None:
            remove_if_orphaned(Path(arguments[-1]), parent)


def remove_if_orphaned(folder: Path, parent: int) -> None:
    """Remove the rehearsal's folder if the parent process was killed and cannot do it.

    The signal of the parent's death may arrive before the parent has ended, so this waits up to 2 seconds.
    """
    deadline_s = time.monotonic() + ORPHANED_S
    while os.getppid() == parent and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    if os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)


def rehearse(name: str, requested: RunConfig, folder: Path, signals: Signals) -> int:
    """Create the run directory, and run a session with an observer; return the exit code.

    `name`: `fresh`, `resumed` or `resumed_again`.
    """
    from torch import OutOfMemoryError

    from neobert.rehearsal.measurements import record_config_reads
    from neobert.rehearsal.observers import ResumedRunObserver, UninterruptedRunObserver
    from neobert.training.loop.session import run_session

    script = plan_rehearsal(plan_steps(requested, epoch_size(requested)).value)
    is_resumed, is_last = name != FRESH, name == RESUMED_AGAIN
    target = folder / (RESUMED_FOLDER if is_resumed else FOLDER)
    replaced = rehearsal_values(requested, target, script, is_resumed=is_resumed, is_last=is_last)
    config = rehearsal_config(requested, replaced)
    rank = int(os.environ.get("RANK", "0"))
    if name == RESUMED and rank == 0:
        copy_run_in_progress(folder / FOLDER, target)
    run_dir = create_run_directory(config) if rank == 0 else target
    parent = ParentChannel(folder, name, rank)
    observer: UninterruptedRunObserver | ResumedRunObserver = (
        ResumedRunObserver(script, parent, is_last=is_last)
        if is_resumed
        else UninterruptedRunObserver(script, parent)
    )
    parent.report_stage("preparing the text, building the model")
    with record_config_reads() as keys:
        observer.seen |= {
            "planned_steps": script.planned,
            "keys_read": keys,
            "keys_replaced": sorted(replaced),
        }
        try:
            run_session(config, run_dir, signals, observer.attach)
        except OutOfMemoryError as error:
            parent.report_out_of_memory(error, observer.seen)
    return EXIT_TRAINING_FAILED


if __name__ == "__main__":
    exit_process(main(sys.argv[1:]))
