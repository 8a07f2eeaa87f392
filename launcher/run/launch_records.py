"""Files that a launch writes into its run directory before the trainer starts."""

from __future__ import annotations

import codecs
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from launcher.io.files import convert_write_errors, make_folder, write_bytes, write_json, write_text
from launcher.preflight.examination import DIFF, write_results
from launcher.preflight.receipts import Examination, code_version
from launcher.rundir.directory import is_run_directory, start_since_boot_s
from launcher.rundir.records import get_list, read_json
from neobert.config import to_dict
from neobert.errors import ProjectError
from neobert.runfiles.attempt import FILE as ATTEMPT
from neobert.runfiles.run_dir import LOGS, MANIFEST, OUTCOME, PROVENANCE, RESOLVED
from profiles.registry import ResolvedRun

RUN_FILE = "config.yaml"
RUN_FILE_HEADING = (
    "# The run file as given, without the command line and the profile. All settings of this run are in "
    "resolved.json.\n"
)
RUN_FILES = (
    RUN_FILE, RESOLVED, PROVENANCE, "facts.json", "preflight.json", "receipt.json", MANIFEST, ATTEMPT,
    f"{LOGS}/",
)  # fmt: skip


def move_aside(folder: Path, *, is_resumed: bool) -> Path | None:
    """Move the run in `folder` aside, unless it is resumed.

    For a symlink, the target folder is moved and replaced by an empty one, so that the new run is written to
    the disk that was checked.
    Returns the new path of the old run, or None if nothing was moved. Raises ProjectError for a folder with
    files that is not a run directory.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    if not is_run_directory(folder):
        raise ProjectError(
            code="CKP008",
            message="the folder is not empty, and it is not a run directory",
            hint="set trainer.output_dir to a new folder",
            place=str(folder),
        )
    if is_resumed:
        return None
    target = folder.resolve()
    old = target.with_name(f"{target.name}.old-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    with convert_write_errors(folder):
        target.rename(old)
        if folder.is_symlink():
            target.mkdir()
    return old


def write_run(
    examination: Examination, files: Sequence[Path], folder: Path, staging: Path, launch: Mapping[str, Any]
) -> None:
    """Write the files of a launch; the receipt last, because worker nodes wait for it.

    The launcher may be killed between any two files. First the outcome of the previous launch is deleted:
    next to a new config it would report the new run as finished. Then the config is written, which makes
    the folder a run directory.

    Args:
        files: run files in the given order; values of later files win.
        staging: folder in which preflight stored the diff of the working tree.
        launch: further entries of the manifest for this launch.
    """
    run, earlier_outcome = examination.run, read_json(folder / OUTCOME)
    with convert_write_errors(folder / OUTCOME):
        (folder / OUTCOME).unlink(missing_ok=True)
    write_json(folder / RESOLVED, to_dict(run.config))
    make_folder(folder / LOGS)
    _write_run_files(run, files, folder)
    write_json(folder / PROVENANCE, {path: origin._asdict() for path, origin in run.origins.items()})
    diff = _keep_diff(staging / DIFF, folder, examination)
    write_manifest(folder, {**describe_launch(examination), **launch, "diff": diff}, earlier_outcome)
    write_results(examination, folder)


def _write_run_files(run: ResolvedRun, files: Sequence[Path], folder: Path) -> None:
    """Copy the run files under a heading, or write one that names the profile if none is given.

    The last file, whose values win, becomes config.yaml or config.toml. Overrides are in the manifest.
    """
    if not files:
        write_text(
            folder / RUN_FILE, f"{RUN_FILE_HEADING}profile: {run.profile.name}\n" if run.profile else "{}\n"
        )
    for number, file in enumerate(reversed(files)):
        suffix = ".toml" if file.suffix.lower() == ".toml" else ".yaml"
        with convert_write_errors(file):
            content = RUN_FILE_HEADING.encode() + file.read_bytes().removeprefix(codecs.BOM_UTF8)
        write_bytes(folder / f"config{f'_{len(files) - number}' if number else ''}{suffix}", content)


def _keep_diff(diff: Path, folder: Path, examination: Examination) -> str:
    """Copy the diff of the working tree into the run directory; return its name, or "" if there is no diff.

    The name has the hash of the content, because each launch of a resumed run may have another diff.
    """
    if not diff.is_file() or examination.facts.git is None:
        return ""
    name = f"working-tree-{examination.facts.git.diff_sha256[:12]}.diff"
    with convert_write_errors(folder / name):
        shutil.copyfile(diff, folder / name)
    return name


def describe_launch(examination: Examination) -> dict[str, Any]:
    """Return the manifest entry of one launch: command line, code version, config digest, packages, host."""

    facts = examination.facts
    return {
        "started_utc": _now_utc(),
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


def write_manifest(folder: Path, launch: Mapping[str, Any], earlier_outcome: Mapping[str, Any]) -> None:
    """Write the manifest: this launch, and under `earlier` the launches before it.

    The launch before this one gets `earlier_outcome` as its outcome.
    """
    before = read_json(folder / MANIFEST)
    earlier = get_list(before, "earlier")
    before.pop("earlier", None)
    if before:
        earlier = [*earlier, {**before, "outcome": earlier_outcome}]
    write_json(folder / MANIFEST, {**launch, "earlier": earlier})


def record_trainer(folder: Path, pid: int) -> None:
    """Record the trainer's process for `status`, unless the process has already ended."""
    manifest = read_json(folder / MANIFEST)
    try:
        started = start_since_boot_s(psutil.Process(pid))
    except psutil.Error:
        return
    write_json(folder / MANIFEST, {**manifest, "trainer_pid": pid, "trainer_started_after_boot_s": started})


def record_restart(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add a restart of this launch to the manifest, with the current time."""
    manifest = read_json(folder / MANIFEST)
    restarts = [*get_list(manifest, "restarts"), {"ts_utc": _now_utc(), **entry}]
    write_json(folder / MANIFEST, {**manifest, "restarts": restarts})


def _now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
