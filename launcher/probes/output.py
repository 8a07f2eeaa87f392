"""Existing content of output_dir."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.probes.data import WEIGHTS
from launcher.probes.probe import Subject
from launcher.rundir.records import read_json
from neobert.config.canonical import sha256
from neobert.runfiles.checkpoint.folders import checkpoint_steps, set_aside_in
from neobert.runfiles.location import CHECKPOINTS
from validators.facts import FOREIGN_TREE
from validators.facts_host import OutputFacts


def probe_output(subject: Subject) -> OutputFacts:
    """Look for an earlier run: its config and its checkpoints."""
    folder = subject.output_dir
    is_directory = folder.is_dir()
    checkpoints = folder / CHECKPOINTS
    resolved = read_json(folder / "resolved.json")
    return OutputFacts(
        path=str(folder),
        exists=folder.exists(),
        is_directory=is_directory,
        is_empty=not is_directory or not any(folder.iterdir()),
        config_digest=sha256(resolved) if resolved else "",
        checkpoint_steps=tuple(checkpoint_steps(checkpoints)),
        num_set_aside=len(set_aside_in(checkpoints)),
        foreign_checkpoint=_foreign_checkpoint(folder / FOREIGN_TREE),
    )


def _foreign_checkpoint(tree: Path) -> str:
    """The newest `<step>` folder with weights that a run can start from; empty where there is none."""
    if not os.path.isdir(tree):  # `Path.is_dir` raises where this user may not look
        return ""
    steps = {
        int(path.parent.name): path.parent for path in tree.glob(f"*/{WEIGHTS}") if _is_step(path.parent)
    }
    return str(steps[max(steps)]) if steps else ""


def _is_step(folder: Path) -> bool:
    return folder.name.isascii() and folder.name.isdecimal()
