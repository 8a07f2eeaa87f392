"""Settings that determine a run's result and differ from those that its run directory was begun with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.rundir.records import Record, read_json
from neobert.config import to_dict
from neobert.config.keys import effect_of, path_keys
from neobert.config.nodes import join
from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.runfiles.checkpoint.state import CONFIG, STATE_DIR
from neobert.runfiles.resume_policy import Difference, differences, is_structural
from neobert.runfiles.run_dir import CHECKPOINTS, MANIFEST, NEWEST, RESOLVED
from profiles.registry import ResolvedRun


def settings_begun_with(run: ResolvedRun, folder: Path) -> tuple[Difference, ...]:
    """Return the keys that determine the result and differ in a checkpoint that the run would resume.

    All checkpoints count, so that a run that was resumed with other settings before is found as well. Keys
    that a resume may change without another result (machine, loading, saves, logging) are left out. Empty
    without checkpoints, and if the run would not resume the newest of them.
    """
    if run.config.trainer.resume_from_checkpoint not in NEWEST:
        return ()
    current, start = to_dict(run.config), read_json(folder / MANIFEST).get("working_directory")
    differing = {
        each.key: each
        for saved in _saved_configs(folder)
        for each in differences(saved, current)
        if (is_structural(each.key) or effect_of(each.key) == "numerics") and not _is_same_path(each, start)
    }
    return tuple(differing.values())


def _saved_configs(folder: Path) -> Iterator[Record]:
    """Yield the configs of the checkpoints; if none can be read, that of the last launch.

    The config of a launch that saved nothing is not that of the checkpoints.
    """
    root = folder / CHECKPOINTS
    steps = _steps(root)
    saved = [config for step in steps if (config := read_json(root / str(step) / STATE_DIR / CONFIG))]
    last = read_json(folder / RESOLVED) if steps else {}
    yield from saved or ([last] if last else [])


def _steps(root: Path) -> list[int]:
    """Return the steps of the checkpoints; empty if the folder is not readable, which other checks report."""
    try:
        return checkpoint_steps(root)
    except OSError:
        return []


def _is_same_path(each: Difference, start: Any) -> bool:
    """Return whether two relative paths name one file, the saved one from the folder `start`."""
    if each.key not in map(join, path_keys()):
        return False
    both = (start, each.saved), (os.getcwd(), each.current)
    if not all(isinstance(text, str) for pair in both for text in pair):
        return False
    saved, current = (os.path.normpath(os.path.join(*pair)) for pair in both)
    return saved == current
