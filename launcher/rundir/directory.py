"""Run directory: name, lock, liveness of its trainer, and whether a run can continue in it."""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from launcher.io.files import absolute_path, make_folder, write_json
from launcher.rundir.records import Record, read_json, read_outcome
from launcher.terminal import console
from launcher.terminal.activity import announce
from launcher.terminal.values import show_duration
from neobert.clock import boot_id
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.keys import path_keys, without_effects
from neobert.config.nodes import join
from neobert.config.removed_keys import without_removed
from neobert.errors import ProjectError
from neobert.printable import printable
from neobert.runfiles.attempt import FILE, replaced_error
from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from neobert.runfiles.checkpoint.state import STATE, STATE_DIR
from neobert.runfiles.resume_policy import DEFAULTS
from neobert.runfiles.run_dir import CHECKPOINTS, HALT, MANIFEST, NEVER, NEWEST, RESOLVED
from profiles.registry import ResolvedRun
from validators.facts_host import ResumeFacts

LOCK_TIMEOUT_S = 30.0
POLL_S = 0.05


def run_directory(run: ResolvedRun) -> Path:
    """Return the absolute path of trainer.output_dir."""
    return absolute_path(run.config.trainer.output_dir, "trainer.output_dir")


def is_run_directory(folder: Path) -> bool:
    """Return whether the folder has the resolved config or the manifest of a launch."""
    return (folder / RESOLVED).is_file() or (folder / MANIFEST).is_file()


@contextmanager
def lock_run_directory(folder: Path) -> Iterator[int]:
    """Lock the run directory for one launch; the trainer inherits the lock, which outlives a killed launcher.

    Yields the descriptor that the trainer keeps open. Raises ProjectError if another launch has the lock.
    """
    descriptor = _open_and_lock(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class CreatedMeanwhileError(ProjectError):
    """Raised if another launch created a run in a directory that was free when the checks began."""


@contextmanager
def create_run_directory(folder: Path) -> Iterator[int]:
    """Create and lock a run directory, and yield the descriptor of the lock.

    Raises `CreatedMeanwhileError` if another launch created a run in it meanwhile.
    """
    make_folder(folder)
    with lock_run_directory(folder) as held:
        if any(folder.iterdir()):
            raise CreatedMeanwhileError(
                code="run-in-progress",
                message="another launch created a run in this directory during these checks",
                hint=f"see {_status_text(folder)}, or choose another trainer.output_dir",
                place=str(folder),
            )
        yield held


def is_locked(folder: Path) -> bool:
    """Return whether a launch has locked the run directory; False on a file system without locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


def _open_and_lock(folder: Path) -> int:
    """Open and lock a directory, again if it was replaced before it was locked; return the descriptor.

    An attempt of this job that a lost node may still continue is replaced first, so that it stops.
    """
    is_lost = follows_lost_attempt(folder)
    if is_lost:
        take_over(folder)
    while True:
        descriptor = _open_folder(folder)
        try:
            _lock_with_retries(descriptor, folder, is_lost=is_lost)
            if _is_same_folder(descriptor, folder):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open_folder(folder: Path) -> int:
    """Open the folder. Raises ProjectError if it was removed or moved meanwhile, or is not readable."""
    try:
        return os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        raise ProjectError(
            code="run-vanished",
            message="the run directory was removed or moved aside while this launch waited for it",
            hint="run the same command again",
            place=str(folder),
        ) from None
    except OSError as error:
        message, hint = (
            f"the run directory cannot be opened: {error.strerror}",
            "fix its permissions, or choose another folder",
        )
        raise ProjectError("not-readable", message, hint, str(folder)) from None


def _is_same_folder(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return False


def _lock_with_retries(descriptor: int, folder: Path, *, is_lost: bool) -> None:
    """Lock the folder; retry for `LOCK_TIMEOUT_S`, because a stopped launch may still be saving.

    Raises ProjectError if another process still has the lock.

    Args:
        is_lost: whether the lock may belong to a replaced attempt, which writes nothing any more: after the
            retries, this launch continues without the lock.
    """
    start_s, is_waiting = time.monotonic(), False
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > start_s + LOCK_TIMEOUT_S:
                if is_lost:
                    return None
                raise ProjectError(
                    code="run-in-progress",
                    message=f"{_lock_holder(folder)} still uses this directory",
                    hint=f"see {_status_text(folder)}; stop that run, or choose another trainer.output_dir",
                    place=str(folder),
                ) from None
            if not is_waiting:
                is_waiting = True
                wait = f"waiting up to {show_duration(LOCK_TIMEOUT_S)} for it to end"
                console.log(printable(f"{_lock_holder(folder)} uses {folder}: {wait}"))
            time.sleep(POLL_S)
        except OSError:
            return None  # a file system without locks: the checks of the directory's content still hold


def _lock_holder(folder: Path) -> str:
    """Describe the process that has the lock: the trainer with its PID, or "another command"."""
    manifest = read_json(folder / MANIFEST)
    return f"process {manifest['trainer_pid']}" if is_alive(manifest) else "another command"


def _status_text(folder: Path) -> str:
    return f"`neobert-launch status {shlex.quote(str(folder))}`"


def refuse_halted_run(folder: Path) -> None:
    """Raise ProjectError if a HALT file blocks training in this directory."""
    if (folder / HALT).exists():
        raise ProjectError(
            code="halted",
            message=f"the run directory contains {HALT}, which blocks training",
            hint=f"{halt_removal_command(folder)}, then repeat this command",
            place=str(folder),
        )


def refuse_special_files(folder: Path) -> None:
    """Raise ProjectError if a file of the run is not a regular file: opening a FIFO blocks the trainer."""
    # Not `*.json*`: the folder OUTPUT.jsonl.parts is a prediction that can be continued.
    files = sorted((*folder.glob("*.json"), *folder.glob("*.jsonl")))
    special = (path for path in files if not path.is_file())
    if (path := next(special, None)) is not None:
        raise ProjectError(
            code="not-regular",
            message="the path is not a regular file",
            hint=f"remove {path}, or choose another trainer.output_dir",
            place=str(path),
        )


def halt_removal_command(folder: Path) -> str:
    """Return the command that allows training in a run directory again."""
    return shlex.join(["rm", str(folder / HALT)])


def start_since_boot_s(process: psutil.Process) -> float:
    """Return the start time of a process in seconds since boot, which clock changes do not affect."""
    return process.create_time() - psutil.boot_time()


def is_alive(manifest: Record) -> bool | None:
    """Return whether the trainer in the manifest is running, or None if it was started on another host."""
    if manifest.get("hostname") != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(manifest.get("trainer_pid") or 0))
        is_same = (
            abs(start_since_boot_s(process) - float(manifest.get("trainer_started_after_boot_s") or 0)) < 1
        )
    except (psutil.Error, ValueError, TypeError, OverflowError):
        return False
    return is_same and process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def is_from_earlier_session(beat: Record, manifest: Record) -> bool:
    """Return whether a heartbeat is older than the current trainer process, which has not reported yet."""
    beat_s, started_s = beat.get("boot_s"), manifest.get("trainer_started_after_boot_s")
    if not isinstance(beat_s, int | float) or not isinstance(started_s, int | float):
        return False
    return beat.get("boot_id") == boot_id() and beat_s < started_s


def is_finished(run: ResolvedRun, folder: Path) -> bool:
    """Return whether a resumed run has nothing left to do.

    Always False if trainer.resume_from_checkpoint names a checkpoint: a finished run is then resumed too.
    """
    if run.config.trainer.resume_from_checkpoint not in NEWEST or not _is_same_run(run, folder):
        return False
    return read_outcome(folder).get("status") == "finished" or _has_final_checkpoint(run, folder)


def continues_run(run: ResolvedRun, folder: Path, resume: ResumeFacts | None) -> bool:
    """Return whether a run directory belongs to this run, which would continue in it.

    True if the checkpoint to resume from is in the directory, or if no checkpoint was found and the directory
    has the same config.
    """
    if resume is not None and resume.target and not resume.is_continued:
        return not resume.is_elsewhere
    return (run.config.trainer.resume_from_checkpoint != NEVER) and _is_same_run(run, folder)


def _is_same_run(run: ResolvedRun, folder: Path) -> bool:
    """Return whether a run directory has the config of this run, with paths as written or resolved.

    The same command in another working directory has other relative paths.
    """
    stored, current = (
        _identifying_values(read_json(folder / RESOLVED)),
        _identifying_values(to_dict(run.config)),
    )
    if stored == current:
        return True
    start = read_json(folder / MANIFEST).get("working_directory")
    return isinstance(start, str) and _resolve_paths(stored, start) == _resolve_paths(current, os.getcwd())


def _resolve_paths(config: Mapping[str, Any], start: str) -> dict[str, Any]:
    """Return a flat config with relative paths resolved from the folder `start`."""
    resolved = dict(config)
    for path, words in path_keys().items():
        value = resolved.get(key := join(path))
        if isinstance(value, str) and value not in words and "://" not in value and not value.startswith("~"):
            resolved[key] = os.path.normpath(os.path.join(start, value))
    return resolved


def _identifying_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config without keys that only determine how a session starts, to compare two runs.

    A key that an older version lacks has the behaviour of that version.
    """
    return without_effects(DEFAULTS | flatten(without_removed(config, keep_set=True)), ("start",))


def _has_final_checkpoint(run: ResolvedRun, folder: Path) -> bool:
    """Return whether there is a verified checkpoint of the last step, saved after its evaluation.

    The trainer may have been killed after this save, before it wrote its outcome. A damaged checkpoint counts
    as missing.
    """
    root, last_step = folder / CHECKPOINTS, run.config.trainer.max_steps
    newest = root / str(last_step)
    if last_step not in checkpoint_steps(root):
        return False
    announce(f"verifying {newest}")
    try:
        is_last = verify_checkpoint(newest).step == last_step
    except (ProjectError, PermissionError):
        return False
    return is_last and read_json(newest / STATE_DIR / STATE).get("row") is None


def take_over(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Record this launch as the only one that may change the run directory, and return its token.

    Raises ProjectError if a later attempt of this Slurm job has begun.
    """
    require_newest(folder, environment)
    token = uuid.uuid4().hex
    job = {"job": environment.get("SLURM_JOB_ID", ""), "restarts": _slurm_restart_count(environment)}
    write_json(folder / FILE, {"token": token, **job, "hostname": socket.gethostname(), "pid": os.getpid()})
    return token


def require_newest(folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ProjectError if a later attempt of this Slurm job has begun: this one runs on a lost node."""
    before = read_json(folder / FILE)
    if _is_same_job(before, environment) and _attempt_number(before) > _slurm_restart_count(environment):
        raise replaced_error(folder)


def follows_lost_attempt(folder: Path) -> bool:
    """Return whether Slurm has started this job again after the attempt in the run directory.

    To Slurm that attempt has ended, but processes of a lost node may still run.
    """
    before = read_json(folder / FILE)
    return _is_same_job(before, os.environ) and _attempt_number(before) < _slurm_restart_count(os.environ)


def _is_same_job(before: Record, environment: Mapping[str, str]) -> bool:
    return bool(before.get("job")) and before.get("job") == environment.get("SLURM_JOB_ID")


def _slurm_restart_count(environment: Mapping[str, str]) -> int:
    text = environment.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def _attempt_number(before: Record) -> int:
    number = before.get("restarts")
    return number if isinstance(number, int) else 0
