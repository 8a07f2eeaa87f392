"""Probes of the run directory: its file system, tested with real writes, and its existing content."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from launcher.probes.probe import DEADLINE_S, Subject, nearest_existing_path
from launcher.rundir.records import read_json
from neobert.atomic_write import NO_ROOM
from neobert.config.canonical import sha256
from neobert.runfiles.checkpoint.folders import checkpoint_steps, superseded_checkpoints
from neobert.runfiles.run_dir import CHECKPOINTS, RESOLVED
from neobert.runfiles.weights_header import WEIGHTS
from neobert.units import BYTES_PER_MIB
from validators.facts import FOREIGN_TREE
from validators.facts_host import DiskFacts, OutputFacts

TRIAL_BYTES = 4 * BYTES_PER_MIB
NO_INODE_LIMIT = 2**31 - 1
RESERVED_MIB_PER_S = 200
IN_MEMORY = ("tmpfs", "ramfs")
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


def probe_disk(subject: Subject) -> DiskFacts:
    """Write, sync and rename a file in the closest existing folder, and remove it; do not create output_dir.

    An existing run's checkpoints folder is tested too: it may belong to another user or be on another disk.
    """
    output = subject.output_dir
    # `probe_output` reports a file in the place of the folder; the disk may still be usable.
    folder = nearest_existing_path(output.parent if output.exists() and not output.is_dir() else output)
    written, synced, renamed, error = _try_to_write(folder)
    checkpoints = output / CHECKPOINTS
    if not error and checkpoints.is_dir():
        folder = checkpoints
        written, synced, renamed, error = _try_to_write(folder)
    filesystem, inodes = filesystem_type(folder), os.statvfs(folder)
    reserved = NOT_TRIED if error else _reserve(folder, filesystem, subject)
    return DiskFacts(
        path=str(folder),
        filesystem=filesystem,
        free_mib=free_space_mib(folder),
        free_inodes=inodes.f_favail if inodes.f_files else NO_INODE_LIMIT,
        is_writable=written,
        rename_works=renamed,
        fsync_works=synced,
        error=error,
        reservation=reserved.status,
        reservation_error=reserved.error,
        temporary_folder=enclosing_temporary_folder(output),
    )


def _reserve(folder: Path, filesystem: str, subject: Subject) -> Reservation:
    """Return the outcome of reserving the size of one checkpoint; request more time first if needed."""
    size_mib = subject.checkpoint_mib
    takes_s = size_mib / RESERVED_MIB_PER_S
    if takes_s > DEADLINE_S / 2:
        subject.request_time(DEADLINE_S + takes_s, f"reserving {size_mib:,.0f} MiB in {folder}")
    return reserve(folder, size_mib, filesystem)


def _try_to_write(folder: Path) -> tuple[bool, bool, bool, str]:
    """Write, sync and rename a file in the folder; return (written, synced, renamed, error)."""
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


def enclosing_temporary_folder(path: Path) -> str:
    """Return the temporary folder (of the system, or $TMPDIR) that contains a path; empty if none does."""
    places = (*TEMPORARY, os.environ.get("TMPDIR", ""))
    parents = path.resolve().parents
    return next((place for place in places if place and Path(place).resolve() in parents), "")


def free_space_mib(folder: Path) -> int:
    """Return the space available to this user on the file system of a folder, in MiB."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize // BYTES_PER_MIB


def filesystem_type(folder: Path) -> str:
    """Return the type of a folder's file system, such as ext4 or tmpfs; empty if it is unknown."""
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    return next((mounts[str(place)] for place in (resolved, *resolved.parents) if str(place) in mounts), "")


@dataclass(frozen=True, slots=True)
class Reservation:
    """Result of an attempt to reserve disk space, with the system's error if it failed."""

    status: Literal["done", "refused", "unsupported", "not tried"]
    error: str = ""


NOT_TRIED = Reservation("not tried")


def reserve(folder: Path, size_mib: float, filesystem: str) -> Reservation:
    """Reserve `size_mib` in an unlinked file of `folder`, free the space again, and return the outcome.

    Skipped on tmpfs, where the reservation would use memory, and if it would take most of the free space, so
    that other programs can still write.
    """
    if size_mib <= 0 or filesystem in IN_MEMORY:
        return NOT_TRIED
    free_mib = free_space_mib(folder)
    if size_mib > free_mib:
        return Reservation("refused", os.strerror(errno.ENOSPC))
    if size_mib > free_mib / 2:
        return NOT_TRIED
    try:
        # Without a name, the kernel frees the file however this process ends.
        with tempfile.TemporaryFile(prefix=".neobert-probe-", dir=folder) as file:
            allocate(file.fileno(), int(size_mib * BYTES_PER_MIB))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        is_refused = error.errno in NO_ROOM or (error.errno == errno.EFBIG and _has_file_size_limit())
        return Reservation("refused" if is_refused else "unsupported", reason)
    return Reservation("done")


def _has_file_size_limit() -> bool:
    """Return whether a file size limit (`ulimit -f`) applies to this process, and so to the trainer.

    Without a limit, EFBIG means that the file system cannot store one file of that size; the smaller files of
    a checkpoint may fit.
    """
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def allocate(descriptor: int, size_bytes: int) -> None:
    """Call fallocate(2). Raises `OSError` if the file system does not support it or is full.

    `os.posix_fallocate` would write every block instead, which takes minutes on a network disk.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    length = ctypes.c_int64(size_bytes)
    # The 64-bit spelling is the same function on 64-bit platforms; musl has only the plain name.
    function = getattr(libc, "fallocate64", None) or libc.fallocate
    if function(descriptor, 0, ctypes.c_int64(0), length):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def probe_output(subject: Subject) -> OutputFacts:
    """Describe the content of the run directory: config, checkpoints, weights of another trainer."""
    folder = subject.output_dir
    is_directory = folder.is_dir()
    checkpoints = folder / CHECKPOINTS
    resolved = read_json(folder / RESOLVED)
    return OutputFacts(
        path=str(folder),
        exists=folder.exists(),
        is_directory=is_directory,
        is_empty=not is_directory or not any(folder.iterdir()),
        config_digest=sha256(resolved) if resolved else "",
        checkpoint_steps=tuple(checkpoint_steps(checkpoints)),
        num_set_aside=len(superseded_checkpoints(checkpoints)),
        foreign_checkpoint=_foreign_checkpoint(folder / FOREIGN_TREE),
        obstacle=why_not_writable(nearest_existing_path(folder)),
        runs=tuple(sorted(file.parent.name for file in folder.glob(f"*/{RESOLVED}"))),
    )


def why_not_writable(folder: Path) -> str:
    """Return why no file can be created in the folder; empty if one can be, or if only the disk is full."""
    try:
        with tempfile.TemporaryFile(dir=folder):  # without a name: a dry run leaves no trace
            return ""
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return "" if error.errno in NO_ROOM else f"no file can be created in {folder} ({reason})"


def _foreign_checkpoint(tree: Path) -> str:
    """Return the path of the highest `<step>` folder with weights; empty if there is none."""
    if not os.path.isdir(tree):  # `Path.is_dir` raises without permission
        return ""
    steps = {
        int(path.parent.name): path.parent
        for path in tree.glob(f"*/{WEIGHTS}")
        if _is_step_folder(path.parent)
    }
    return str(steps[max(steps)]) if steps else ""


def _is_step_folder(folder: Path) -> bool:
    return folder.name.isascii() and folder.name.isdecimal()
