"""The checkpoint that the run would go on from, verified as the trainer verifies it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from launcher.probes.probe import Subject
from launcher.rundir.records import read_json
from neobert.config import to_dict
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.folders import belongs_to, holders, newest_usable, search
from neobert.runfiles.checkpoint.manifest import Manifest, read_manifest, verify
from neobert.runfiles.checkpoint.refusal import StrayEntryError
from neobert.runfiles.checkpoint.state import CONFIG, STATE, STATE_DIR
from neobert.runfiles.resume_policy import structural_differences
from neobert.runfiles.run_dir import CHECKPOINTS
from validators.facts_host import ResumeFacts

SAVED_CONFIG = Path(STATE_DIR, CONFIG)
SAVED_STATE = Path(STATE_DIR, STATE)
MIB = 2**20
# A busy network disk; a slower read counts as a hang.
SLOWEST_MIB_PER_S = 50
GRACE_S = 30.0


def probe_resume(subject: Subject) -> ResumeFacts:
    """Find the checkpoint, sum up its files, compare what shapes the weights and the order of the data."""
    selector = subject.config.trainer.resume_from_checkpoint
    root = subject.output_dir / CHECKPOINTS
    try:
        found, passed_by = search(root, selector, partial(_verify_in_time, subject))
    except ProjectError as error:
        alternative = _alternative((*holders(Path(error.place)), root), subject)
        return _facts(
            selector,
            error.place,
            exists=_is_there(error.place),
            reason=error.message,
            alternative=alternative,
            way_out=error.hint if isinstance(error, StrayEntryError) else "",
        )
    if found is None:
        return _facts(selector, "", exists=False)
    folder, manifest = found
    saved = read_json(folder / SAVED_CONFIG)
    return _facts(
        selector,
        str(folder),
        exists=True,
        is_verified=True,
        step=manifest.step,
        differences=_differences(saved, to_dict(subject.config)),
        passed_by=tuple(map(str, passed_by)),
        learning_rate=_learning_rate(folder),
        is_elsewhere=not belongs_to(subject.output_dir, folder),
    )


def _alternative(roots: tuple[Path, ...], subject: Subject) -> str:
    """The newest checkpoint that verifies, of the first of these folders that has one; empty for none."""
    for root in roots:
        with suppress(PermissionError):
            if usable := newest_usable(root, partial(_verify_in_time, subject)):
                return str(usable)
    return ""


def _is_there(place: str) -> bool:
    """Return whether a file exists, even in a folder that this user cannot read."""
    try:
        return Path(place).exists()
    except PermissionError:
        return True


def _verify_in_time(subject: Subject, folder: Path) -> Manifest:
    """Verify a checkpoint in as much time as its bytes take to be read from a slow disk."""
    size_mib = read_manifest(folder).size_bytes / MIB
    subject.ask_for_time(GRACE_S + size_mib / SLOWEST_MIB_PER_S, f"verifying {folder}: {size_mib:,.0f} MiB")
    return verify(folder)


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, structural_differences(saved, current))) if saved else ()


def _learning_rate(folder: Path) -> float | None:
    rate = read_json(folder / SAVED_STATE).get("learning_rate")
    return rate if isinstance(rate, float) and math.isfinite(rate) else None


def _facts(
    selector: str,
    target: str,
    *,
    exists: bool,
    is_verified: bool = False,
    reason: str = "",
    step: int = 0,
    differences: tuple[str, ...] = (),
    passed_by: tuple[str, ...] = (),
    alternative: str = "",
    learning_rate: float | None = None,
    is_elsewhere: bool = False,
    way_out: str = "",
) -> ResumeFacts:
    return ResumeFacts(
        selector=selector,
        target=target,
        exists=exists,
        is_verified=is_verified,
        reason=reason,
        step=step,
        structural_differences=differences,
        passed_by=passed_by,
        alternative=alternative,
        learning_rate=learning_rate,
        is_elsewhere=is_elsewhere,
        way_out=way_out,
    )
