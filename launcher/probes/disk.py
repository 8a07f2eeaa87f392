"""The file system under the run directory, tried with a real write, sync and rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

from launcher.probes.probe import DEADLINE_S, Subject, nearest_existing
from launcher.probes.reservation import NOT_TRIED, Reservation, reserve
from neobert.runfiles.location import CHECKPOINTS
from validators.facts_host import DiskFacts

MIB = 2**20
TRIAL_BYTES = 4 * MIB
NO_INODE_LIMIT = 2**31 - 1
RESERVED_MIB_PER_S = 200


def probe_disk(subject: Subject) -> DiskFacts:
    """Try the closest folder that exists; nothing is left behind, and output_dir is not created.

    Of a run that is there, its checkpoints too: they may be another user's, or a link to another disk.
    """
    output = subject.output_dir
    # A file in its place is what the probe of the output tells; the disk around it may be sound.
    folder = nearest_existing(output.parent if output.exists() and not output.is_dir() else output)
    written, synced, renamed, error = _try(folder)
    checkpoints = output / CHECKPOINTS
    if not error and checkpoints.is_dir():
        folder = checkpoints
        written, synced, renamed, error = _try(folder)
    status, filesystem = os.statvfs(folder), filesystem_of(folder)
    reserved = NOT_TRIED if error else _reserve(folder, filesystem, subject)
    return DiskFacts(
        path=str(folder),
        filesystem=filesystem,
        free_mib=status.f_bavail * status.f_frsize // MIB,
        free_inodes=status.f_favail if status.f_files else NO_INODE_LIMIT,
        is_writable=written,
        rename_works=renamed,
        fsync_works=synced,
        error=error,
        reservation=reserved.status,
        reservation_error=reserved.error,
    )


def _reserve(folder: Path, filesystem: str, subject: Subject) -> Reservation:
    """Local file systems reserve in milliseconds; where it takes long, the wait is bounded and said."""
    size_mib = subject.checkpoint_mib
    takes_s = size_mib / RESERVED_MIB_PER_S
    if takes_s > DEADLINE_S / 2:
        subject.ask_for_time(DEADLINE_S + takes_s, f"reserving {size_mib:,.0f} MiB in {folder}")
    return reserve(folder, size_mib, filesystem)


def _try(folder: Path) -> tuple[bool, bool, bool, str]:
    """(written, synced, renamed, what went wrong)."""
    done: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix=".neobert-probe-", dir=folder) as trial:
            _write_and_rename(Path(trial), done)
    except OSError as problem:
        return "write" in done, "sync" in done, "rename" in done, str(problem.strerror or problem)
    return True, True, True, ""


def _write_and_rename(trial: Path, done: list[str]) -> None:
    first, second = trial / "first", trial / "second"
    with first.open("wb") as file:
        file.write(os.urandom(TRIAL_BYTES))
        file.flush()
        done.append("write")
        os.fsync(file.fileno())
    done.append("sync")
    second.write_bytes(b"old")
    first.replace(second)
    if second.stat().st_size == TRIAL_BYTES:
        done.append("rename")


def filesystem_of(folder: Path) -> str:
    """Type of the file system that holds a folder, such as ext4, tmpfs or overlay; empty where unknown."""
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    return next((mounts[str(place)] for place in (resolved, *resolved.parents) if str(place) in mounts), "")
