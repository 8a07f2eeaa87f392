"""The run directory: who may write to it, and what is written before the trainer starts."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from launcher.files import absolute, make_folder, write_bytes, write_json, write_text, writing
from launcher.preflight import DIFF, Examination, write_results
from launcher.receipts import code_version
from launcher.records import Record, list_in, read_json
from neobert.config import to_dict
from neobert.errors import ProjectError
from neobert.training.location import HALT
from neobert.training.outcome import FILE_NAME as OUTCOME
from profiles.registry import ResolvedRun

GIVEN = "config.yaml"
RESOLVED = "resolved.json"
MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"
LOGS = "logs"
WRITTEN = (
    GIVEN, RESOLVED, "provenance.json", "facts.json", "preflight.json", "receipt.json", MANIFEST,
    f"{LOGS}/",
)  # fmt: skip
LOCK_PATIENCE_S = 30.0


def run_directory(run: ResolvedRun) -> Path:
    """Where the run lives, absolute."""
    return absolute(run.config.trainer.output_dir, "trainer.output_dir")


def is_run_directory(folder: Path) -> bool:
    """Whether an earlier launch made it."""
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
                message="another launch began a run here while this one was checked",
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
            "mend its permissions, or choose another folder",
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


def make_room(folder: Path, *, is_resumed: bool) -> Path | None:
    """Move what another run left aside, where that was asked for or where there is nothing to go on from.

    Of a link the folder that it leads to is moved, and the link then leads to an empty one in its place: the
    new run is written to the disk that was checked.
    Returns where it went. Raises ProjectError for a folder that no launch made: it is somebody's, and stays.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    if not is_run_directory(folder):
        raise ProjectError(
            code="CKP008",
            message="the folder is not empty, and no run directory",
            hint="name a new folder in trainer.output_dir",
            place=str(folder),
        )
    if is_resumed:
        return None
    target = folder.resolve()
    old = target.with_name(f"{target.name}.old-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    with writing(folder):
        target.rename(old)
        if folder.is_symlink():
            target.mkdir()
    return old


def write_run(
    examination: Examination, files: Sequence[Path], folder: Path, staging: Path, launch: Mapping[str, Any]
) -> None:
    """Write all that the trainer and a later reader need, and last the receipt, which other nodes wait for.

    Args:
        files: run files as given, the last one wins.
        staging: where the preflight kept the difference of the working tree.
        launch: what else the manifest says of this launch.
    """
    run = examination.run
    make_folder(folder / LOGS)
    _write_given(run, files, folder)
    write_json(folder / RESOLVED, to_dict(run.config))
    write_json(folder / "provenance.json", provenance(run))
    diff = _keep_diff(staging / DIFF, folder, examination)
    write_manifest(folder, {**describe_launch(examination), **launch, "diff": diff})
    (folder / OUTCOME).unlink(missing_ok=True)
    write_results(examination, folder)


def provenance(run: ResolvedRun) -> dict[str, Any]:
    """Where every value came from."""
    return {path: asdict(origin) for path, origin in run.origins.items()}


def _write_given(run: ResolvedRun, files: Sequence[Path], folder: Path) -> None:
    """The run file as given; without one, the line that says the same. Arguments are in the manifest.

    Of several files the last one, which wins, is config.yaml.
    """
    if not files:
        write_text(folder / GIVEN, f"profile: {run.profile.name}\n" if run.profile else "{}\n")
    for number, file in enumerate(reversed(files)):
        suffix = ".toml" if file.suffix.lower() == ".toml" else ".yaml"
        with writing(file):
            content = file.read_bytes()
        write_bytes(folder / f"config{f'_{len(files) - number}' if number else ''}{suffix}", content)


def _keep_diff(diff: Path, folder: Path, examination: Examination) -> str:
    """Named after its content: a resumed run may have been launched from several trees."""
    if not diff.is_file() or examination.facts.git is None:
        return ""
    name = f"working-tree-{examination.facts.git.diff_sha256[:12]}.diff"
    with writing(folder / name):
        shutil.copyfile(diff, folder / name)
    return name


def describe_launch(examination: Examination) -> dict[str, Any]:
    """Code, packages and host of one launch."""
    facts = examination.facts
    return {
        "started_utc": _now(),
        "argv": sys.argv,
        "working_directory": str(Path.cwd()),
        "code_version": code_version(facts),
        "git_sha": facts.git.sha if facts.git else "",
        "config_digest": examination.run.digest,
        "profile": examination.report.profile,
        "unguarded": examination.unguarded or None,
        "overrides": [override.argument for override in examination.run.overrides],
        "hostname": socket.gethostname(),
        "python": facts.software.python if facts.software else "",
        "packages": facts.software.packages if facts.software else {},
        "launcher_pid": os.getpid(),
    }


def write_manifest(folder: Path, launch: Mapping[str, Any]) -> None:
    """Write the latest launch; earlier ones and how they ended are kept behind it."""
    before = read_json(folder / MANIFEST)
    earlier = list_in(before, "earlier")
    before.pop("earlier", None)
    if before:
        earlier = [*earlier, {**before, "outcome": read_json(folder / OUTCOME)}]
    write_json(folder / MANIFEST, {**launch, "earlier": earlier})


def record_trainer(folder: Path, pid: int) -> None:
    """Say which process trains, so that `status` can see whether it lives."""
    manifest = read_json(folder / MANIFEST)
    try:
        started = _after_boot_s(psutil.Process(pid))
    except psutil.Error:
        return
    write_json(folder / MANIFEST, {**manifest, "trainer_pid": pid, "trainer_started_after_boot_s": started})


def _after_boot_s(process: psutil.Process) -> float:
    """When a process was started: the time of day would move with the clock, and the boot with it."""
    return process.create_time() - psutil.boot_time()


def record_restart(folder: Path, told: Mapping[str, Any]) -> None:
    """Add to the manifest that this launch begins the run again, and why."""
    manifest = read_json(folder / MANIFEST)
    restarts = [*list_in(manifest, "restarts"), {"ts_utc": _now(), **told}]
    write_json(folder / MANIFEST, {**manifest, "restarts": restarts})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_alive(manifest: Record) -> bool | None:
    """Whether the trainer's process runs on this host; None where it runs on another one."""
    if manifest.get("hostname") != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(manifest.get("trainer_pid") or 0))
        is_same = abs(_after_boot_s(process) - float(manifest.get("trainer_started_after_boot_s") or 0)) < 1
    except (psutil.Error, ValueError, TypeError, OverflowError):
        return False
    return is_same and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
