"""What output_dir holds already."""

from __future__ import annotations

from launcher.probes.probe import Subject
from launcher.records import read_json
from neobert.config.canonical import sha256
from neobert.training.checkpoint.folders import CHECKPOINTS, checkpoint_steps, set_aside_in
from validators.facts import OutputFacts


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
    )
