"""Record of the run that a launch continues, and the note on the values that it continues with."""

from __future__ import annotations

from pathlib import Path

from launcher.rundir.directory import run_directory
from launcher.rundir.records import read_json
from neobert.plurals import listed
from neobert.runfiles.checkpoint.folders import BEST
from neobert.runfiles.run_dir import NEVER, NEWEST, PROVENANCE, RESOLVED
from profiles.registry import RecordedRun, ResolvedRun


def read_continued_run(run: ResolvedRun) -> RecordedRun | None:
    """Return the record of the run that this one would continue, or None if it would continue none.

    A checkpoint given by its path belongs to the run directory that contains it.
    """
    selector = run.config.trainer.resume_from_checkpoint
    if selector == NEVER:
        return None
    if selector in (*NEWEST, BEST):
        return _read_record(run_directory(run))
    path = Path(selector)
    return next(filter(None, map(_read_record, (path, *path.parents[:2]))), None)


def _read_record(folder: Path) -> RecordedRun | None:
    config, origins = read_json(folder / RESOLVED), read_json(folder / PROVENANCE)
    return RecordedRun(str(folder / RESOLVED), config, origins) if config and origins else None


def continued_values_note(run: ResolvedRun) -> str:
    """Return a line on recorded values that replace the current ones; empty if there are none."""
    if not run.begun_with:
        return ""
    source = f"profile {run.profile.name}" if run.profile else "the defaults"
    keys = f"{listed(run.begun_with)}; `neobert-launch explain KEY` shows the value of a key"
    return f"continuing with the values of {source} that this run began with: {keys}"
