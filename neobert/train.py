"""Trainer process: `python -m neobert.train RUN_DIR/resolved.json`, as a single process or under torchrun.

Signal handlers are installed before slow imports. Standard output is a log with one line per event.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from neobert import __version__
from neobert.atomic_write import NO_ROOM, describe_write_error
from neobert.config import digest, from_dict, replace
from neobert.config.schema import RunConfig
from neobert.errors import (
    ERROR_FILE_ENV,
    EXIT_TRAINING_FAILED,
    EXIT_USAGE,
    ProjectError,
    raised_at,
    write_error_file,
)
from neobert.gc_policy import collect_rarely
from neobert.receipt import FILE_NAME, read_receipt, require_receipt, utc_now
from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.runfiles.run_dir import AUTO, CHECKPOINTS, NEVER, NEWEST, dump_stacks_on_signal, stacks_path
from neobert.training.loop.signals import Signals

log = logging.getLogger("neobert.train")

USAGE = "usage: python -m neobert.train RUN_DIR/resolved.json [--again]"
AGAIN = "--again"

# A process that used a GPU can take seconds to die, and its connections close before. Without this wait,
# torchrun sees first the rank that lost a connection, and never reports the rank that was killed.
LOST_RANK_S = 3.0
CLOSED = ("Connection closed by peer", "Connection reset by peer")


def main(arguments: list[str]) -> int:
    """Train the run of a resolved config; return an exit code (see `docs/recovery.md`)."""
    configure_logging()
    signals = Signals()
    try:
        with signals.handle_signals():
            return train(arguments, signals)
    except ProjectError as error:
        return report_error(error)
    except Exception as error:
        log.exception("training failed")
        if is_connection_lost(error):
            time.sleep(LOST_RANK_S)
        return report_error(unexpected_error(error, Path(arguments[0]).parent))


def train(arguments: list[str], signals: Signals) -> int:
    """Check that a receipt covers the config, then import torch and run the session; return the exit code.

    Raises `ProjectError` for wrong arguments, or if no valid receipt covers the config.
    """
    if not arguments or arguments[1:] not in ([], [AGAIN]):
        raise ProjectError("CLI001", USAGE, exit_code=EXIT_USAGE)
    path = Path(arguments[0])
    config = read_config(path)
    is_restart = AGAIN in arguments
    require_launched(path.parent / FILE_NAME, config, is_restart=is_restart)
    log.info("neobert-launch %s, config %s", __version__, digest(config)[:12])
    dump_stacks_on_signal(stacks_path(path.parent, int(os.environ.get("RANK", "0"))))
    if is_restart:
        config = resume_own_run(config, path.parent)

    from neobert.training.loop.session import run_session

    return run_session(config, path.parent, signals, is_restart=is_restart)


def require_launched(receipt: Path, config: RunConfig, *, is_restart: bool) -> None:
    """Raise `ProjectError` RCP001 unless the receipt file covers this config and has not expired.

    Expiry is not checked for restarts (`is_restart`): a run may last longer than its receipt.
    """
    now = datetime.fromisoformat(read_receipt(receipt).created_utc) if is_restart else utc_now()
    require_receipt(receipt, digest(config), now)


def resume_own_run(config: RunConfig, run_dir: Path) -> RunConfig:
    """Return the config for a restart, set to resume from the newest checkpoint in the run directory.

    Without such a checkpoint, a configured source checkpoint is kept as the start of the run.
    """
    selector = config.trainer.resume_from_checkpoint
    if selector not in (NEVER, *NEWEST) and not checkpoint_steps(run_dir / CHECKPOINTS):
        return config
    return replace(config, "trainer.resume_from_checkpoint", AUTO)


def read_config(path: Path) -> RunConfig:
    """Read a resolved config. Raises `ProjectError` if the file is unreadable or invalid."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"the resolved config cannot be read: {error}"
        raise ProjectError("CFG011", message, USAGE, str(path), EXIT_USAGE) from error
    return from_dict(content)


def report_error(error: ProjectError) -> int:
    """Log the error, write it for the parent process unless another rank did, and return its exit code."""
    log.error("%s", error)
    target = os.environ.get(ERROR_FILE_ENV)
    if target and not (os.path.exists(target) and os.path.getsize(target)):
        write_error_file(error)
    return error.exit_code


def unexpected_error(error: Exception, run_dir: Path | None = None) -> ProjectError:
    """Convert an unexpected exception to a `ProjectError` with a one-line message and a hint.

    The code is CKP004 for a full disk, else TRN001. `run_dir`: None for a trial, which keeps no log.
    """
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        hint = f"free disk space, then {_resume_hint(run_dir)}"
        return ProjectError(
            "CKP004", describe_write_error(error), hint, error.filename or "", EXIT_TRAINING_FAILED
        )
    log_note = "" if run_dir is None else " (the rank's log has the traceback)"
    hint = f"fix the cause{log_note}, then {_resume_hint(run_dir)}"
    if type(error).__name__ == "OutOfMemoryError":
        hint = "lower trainer.per_device_train_batch_size and raise trainer.gradient_accumulation_steps"
    message = f"training failed: {type(error).__name__}: {error}".splitlines()[0] + raised_at(error)
    return ProjectError("TRN001", message, hint, exit_code=EXIT_TRAINING_FAILED)


def is_connection_lost(error: Exception) -> bool:
    """Return whether the error means that another rank is gone. Gloo raises a plain RuntimeError for this."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in CLOSED)


def _resume_hint(run_dir: Path | None) -> str:
    """Return the hint to continue a failed run: resume if it has a checkpoint, else launch again."""
    if run_dir is None:
        return "launch again"
    steps = checkpoint_steps(run_dir / CHECKPOINTS)
    if not steps:
        return "launch again: no checkpoint was written, so training starts at step 0"
    return f"resume with --resume auto: the newest checkpoint is step {steps[-1]}"


def configure_logging() -> None:
    """Log to standard output, with the rank in each line if the world size exceeds 1."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    who = f" rank {os.environ.get('RANK', '0')}" if ranks > 1 else ""
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.WARNING,
        format=f"%(asctime)s{who} %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("neobert").setLevel(logging.INFO)


def exit_process(exit_code: int) -> NoReturn:
    """Flush the logs and end the process with `os._exit`, without interpreter shutdown.

    Shutdown takes a second after torch was imported, and another process may wait for the end. And a Gloo
    thread that holds the last reference to a tensor needs the lock that the interpreter holds while it joins
    the thread, so some runs would hang. All files must be closed before this call.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the log may be on the full disk that ended the run
            stream.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    collect_rarely()
    exit_process(main(sys.argv[1:]))
