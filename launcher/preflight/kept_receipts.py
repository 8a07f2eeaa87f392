"""Cache of this user's preflight receipts, so that the same run starts without another rehearsal.

`train` reuses a receipt only for the same run on the same machine: same config, run directory, code,
packages, environment, driver and devices, before the receipt expires and before the next boot. The data is
inspected and the packages are imported again, and both must be unchanged.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.io.files import private_folder, why_not_private
from launcher.preflight import levels
from launcher.preflight.receipts import Examination, is_unchanged, make_receipt, require_readable
from launcher.preflight.rehearsal_inputs import rehearsal_inputs
from launcher.probes.collect import collect
from launcher.probes.probe import Subject
from launcher.rundir.directory import run_directory
from neobert.clock import seconds_since_boot
from neobert.config.canonical import sha256
from neobert.errors import ProjectError
from neobert.receipt import Receipt, read_receipt, write_receipt
from neobert.units import SECONDS_PER_HOUR
from profiles.registry import ResolvedRun

FOLDER = "receipts"
LONGEST_S = 168.0 * SECONDS_PER_HOUR
"""Maximum of `guard.receipt_ttl_hours`, in seconds."""
IDENTITY = {"software", "git", "gpus"}
LOADED = "loaded files"
REMEASURED = frozenset({"imports", "inspection"})
"""Groups of facts that are measured despite a stored receipt."""
OWN = 0o600


def store_receipt(examination: Examination, inputs: Mapping[str, str]) -> None:
    """Store the receipt of a preflight that passed and included a rehearsal; write errors are ignored.

    `inputs`: result of `rehearsal_inputs` before the checks. If the inputs have changed since, the receipt is
    not stored.
    """
    is_rehearsed = examination.facts.rehearsal is not None and not examination.reused
    if examination.report.verdict != "pass" or examination.unguarded or not is_rehearsed:
        return
    path, loaded = receipt_path(examination.run), _imports_digest(examination)
    if path is None or not loaded or not inputs or inputs != rehearsal_inputs(examination.run):
        return
    receipt = replace(
        make_receipt(examination), inputs={**inputs, LOADED: loaded}, issued_boot_s=seconds_since_boot()
    )
    with suppress(OSError):
        if not why_not_private(path.parent):
            _remove_expired(path.parent)
            write_receipt(receipt, path)
            path.chmod(OWN)


def find_receipt(run: ResolvedRun, inputs: Mapping[str, str]) -> Receipt | None:
    """Return the stored receipt of the run if it is still valid on this machine, or None.

    `inputs`: current result of `rehearsal_inputs`.
    """
    path = receipt_path(run)
    if path is None or not inputs:
        return None
    try:
        if not _is_own_file(path):
            return None
        receipt = read_receipt(path)
        require_readable(receipt, path)
    except (OSError, ProjectError):
        return None
    if receipt.unguarded or receipt.hostname != socket.gethostname() or not _is_unexpired(receipt, run):
        return None
    if receipt.measured_utc or {**receipt.inputs, LOADED: ""} != {**inputs, LOADED: ""}:
        return None
    probes = [probe for probe in (*levels.HOST_PROBES, *levels.GPU_PROBES) if probe.group in IDENTITY]
    facts = collect(probes, Subject(run.config, run_directory(run), Path.cwd()))
    return receipt if is_unchanged(receipt, run, facts) else None


def is_same_content(receipt: Receipt, examination: Examination) -> bool:
    """Return whether prepared data and imported files are the same as in the receipt.

    Rejected data and failed imports count as the same, because rules report them.
    """
    prepared, loaded = examination.facts.prepared, _imports_digest(examination)
    is_same_text = prepared is None or prepared.fingerprint == receipt.text
    return is_same_text and loaded in ("", receipt.inputs.get(LOADED))


def receipt_path(run: ResolvedRun) -> Path | None:
    """Return the path of the run's stored receipt, or None if there is no private cache folder.

    The file name is a digest of the config and the run directory.
    """
    folder = private_folder(FOLDER)
    key = sha256([run.digest, str(run_directory(run))])
    return None if folder is None else folder / f"{key}.json"


def _imports_digest(examination: Examination) -> str:
    return examination.facts.imports.loaded if examination.facts.imports else ""


def _is_own_file(path: Path) -> bool:
    """Return whether only this user can have written the file.

    Owner and mode of the file are checked too, because others may have had access to the folder earlier.
    """
    status = path.lstat()
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
    return is_own and stat.S_IMODE(status.st_mode) == OWN and not why_not_private(path.parent)


def _is_unexpired(receipt: Receipt, run: ResolvedRun) -> bool:
    """Return whether the receipt is younger than guard.receipt_ttl_hours, by the time since boot.

    Unlike the system clock, the time since boot cannot be set back.
    """
    age_s = seconds_since_boot() - receipt.issued_boot_s
    return 0 <= age_s < run.config.guard.receipt_ttl_hours * SECONDS_PER_HOUR


def _remove_expired(folder: Path) -> None:
    """Remove receipts older than `LONGEST_S`; errors are ignored."""
    for path in folder.glob("*.json"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > LONGEST_S:
                path.unlink()
