"""Run directory: name, lock, and liveness of its trainer."""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from launcher.io.files import absolute, make_folder
from launcher.rundir.records import Record, read_json
from neobert.errors import ProjectError
from neobert.runfiles.location import HALT, MANIFEST, RESOLVED
from profiles.registry import ResolvedRun

METRICS = "metrics.jsonl"
LOGS = "logs"
LOCK_PATIENCE_S = 30.0


def run_directory(run: ResolvedRun) -> Path:
    """Return the absolute path of the run directory."""
    return absolute(run.config.trainer.output_dir, "trainer.output_dir")


def is_run_directory(folder: Path) -> bool:
    """Return whether an earlier launch created the folder."""
    return (folder / RESOLVED).is_file() or (folder / MANIFEST).is_file()


@contextmanager
def claimed(folder: Path) -> Iterator[int]:
    """Hold the run directory for one launch; the trainer inherits the hold, so it outlives a killed launcher.

    Yields the descriptor that the trainer keeps open. Raises ProjectError where another launch holds it.
    """
    descriptor = _hold(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def created(folder: Path) -> Iterator[int]:
    """Make a run directory and hold it. Raises ProjectError where another launch did so meanwhile."""
    make_folder(folder)
    with claimed(folder) as held:
        if any(folder.iterdir()):
            raise ProjectError(
                code="run-in-progress",
                message="another launch created a run here during the checks of this one",
                hint=f"see `neobert-launch status {folder}`, or choose another trainer.output_dir",
                place=str(folder),
            )
        yield held


def _hold(folder: Path) -> int:
    """Lock the directory of that name: the one that was waited for may have been moved aside meanwhile."""
    while True:
        descriptor = _opened(folder)
        try:
            _lock(descriptor, folder)
            if _is_still(descriptor, folder):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _opened(folder: Path) -> int:
    """Raises ProjectError where somebody removed it or moved it aside meanwhile, or keeps it closed."""
    try:
        return os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        raise ProjectError(
            code="run-vanished",
            message="the run directory was removed or moved aside while this launch waited for it",
            hint="give the same command again",
            place=str(folder),
        ) from None
    except OSError as error:
        message, hint = (
            f"cannot be opened: {error.strerror}",
            "fix its permissions, or choose another folder",
        )
        raise ProjectError("not-readable", message, hint, str(folder)) from None


def _is_still(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return False


def _lock(descriptor: int, folder: Path) -> None:
    """A launch that was just stopped may still be saving: wait for a while."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _occupied(folder) from None
            time.sleep(0.2)
        except OSError:
            return None  # a file system without locks: the checks of the directory's content still hold


def _occupied(folder: Path) -> ProjectError:
    pid = read_json(folder / MANIFEST).get("trainer_pid")
    who = f"process {pid}" if pid else "another process"
    return ProjectError(
        code="run-in-progress",
        message=f"{who} is still training in this directory",
        hint=f"see `neobert-launch status {folder}`; stop it, or choose another trainer.output_dir",
        place=str(folder),
    )


def refuse_halted(folder: Path) -> None:
    """Raise ProjectError where a file asks for no training in this directory."""
    if (folder / HALT).exists():
        raise ProjectError(
            code="halted",
            message=f"a file {HALT} in the run directory asks for no training",
            hint=f"{remove_halt(folder)}, then repeat this command",
            place=str(folder),
        )


def remove_halt(folder: Path) -> str:
    """The command that lets a run directory be trained in again."""
    return shlex.join(["rm", str(folder / HALT)])


def after_boot_s(process: psutil.Process) -> float:
    """When a process was started: the time of day would move with the clock, and the boot with it."""
    return process.create_time() - psutil.boot_time()


def is_alive(manifest: Record) -> bool | None:
    """Return whether the trainer runs on this host; None if it runs on another one."""
    if manifest.get("hostname") != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(manifest.get("trainer_pid") or 0))
        is_same = abs(after_boot_s(process) - float(manifest.get("trainer_started_after_boot_s") or 0)) < 1
    except (psutil.Error, ValueError, TypeError, OverflowError):
        return False
    return is_same and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
