"""Receipts of this user's own preflights, kept so that the same run starts without another rehearsal.

What `train` reuses must be the very same run on the same machine: config, run directory, code, versions,
driver and devices, within the time limit of the receipt. The text is inspected again, and must be the same.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

from launcher.io.files import absolute
from launcher.io.private_folder import private_folder, why_not_private
from launcher.preflight import levels
from launcher.preflight.receipts import Examination, is_unchanged, make_receipt, require_readable
from launcher.probes.collect import collect
from launcher.probes.probe import Subject
from neobert.config.canonical import sha256
from neobert.errors import ProjectError
from neobert.receipt import Receipt, read_receipt, write_receipt
from profiles.registry import ResolvedRun

FOLDER = "receipts"
LONGEST_S = 168 * 3600.0
"""The longest time for which `guard.receipt_ttl_hours` lets a receipt be valid."""
IDENTITY = {"software", "git", "gpus"}


def keep(examination: Examination) -> None:
    """Keep the receipt of a run that passed and was rehearsed here; a full disk keeps none."""
    is_rehearsed = examination.facts.rehearsal is not None and not examination.reused
    if examination.report.verdict != "pass" or examination.unguarded or not is_rehearsed:
        return
    path = path_for(examination.run)
    with suppress(OSError):
        if path is not None and not why_not_private(path.parent):
            _remove_expired(path.parent)
            write_receipt(make_receipt(examination), path)


def find(run: ResolvedRun) -> Receipt | None:
    """Return the kept receipt of the run if it still applies here; None without one."""
    path = path_for(run)
    if path is None or not path.is_file() or why_not_private(path.parent):
        return None
    try:
        receipt = read_receipt(path)
        require_readable(receipt, path)
    except ProjectError:
        return None
    if receipt.unguarded or receipt.hostname != socket.gethostname():
        return None
    probes = [probe for probe in (*levels.HOST_PROBES, *levels.GPU_PROBES) if probe.group in IDENTITY]
    facts = collect(probes, Subject(run.config, _output_dir(run), Path.cwd()))
    return receipt if is_unchanged(receipt, run, facts) else None


def measured_again() -> frozenset[str]:
    """Return the groups that are measured in spite of a kept receipt: imports and text."""
    return frozenset(probe.group for probe in levels.HEAVY_PROBES if not probe.measures_time)


def is_same_text(receipt: Receipt, examination: Examination) -> bool:
    """Return whether the text is that of the receipt, or was rejected, which is an error by itself."""
    prepared = examination.facts.prepared
    return prepared is None or prepared.fingerprint == receipt.text


def path_for(run: ResolvedRun) -> Path | None:
    """Return the file of the run's kept receipt; a run with another run directory has another one."""
    folder = private_folder(FOLDER)
    key = sha256([run.digest, str(_output_dir(run))])
    return None if folder is None else folder / f"{key}.json"


def _output_dir(run: ResolvedRun) -> Path:
    return absolute(run.config.trainer.output_dir, "trainer.output_dir")


def _remove_expired(folder: Path) -> None:
    for path in folder.glob("*.json"):
        if time.time() - path.stat().st_mtime > LONGEST_S:
            path.unlink(missing_ok=True)
