"""Texts that `train` prints at the start of a run."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.preflight.preflight_view import preflight_text
from launcher.preflight.receipts import Examination
from neobert.families.hf.initial_weights import describe_loading
from neobert.families.table import initial_weights
from neobert.printable import printable
from neobert.runfiles.run_dir import NEVER
from profiles.registry import ResolvedRun


def opening_text(examination: Examination, folder: Path, *, verbose: bool) -> str:
    """Format the checks, the run directory, the checkpoint or initial weights, and why it runs unguarded."""
    lines = [preflight_text(examination, verbose=verbose), printable(f"run directory: {folder}")]
    resume = examination.facts.resume
    if resume is not None and resume.exists and resume.is_verified:
        verb = "continuing" if resume.is_continued else "resuming"
        lines.append(printable(f"{verb} from step {resume.step:,}: {resume.target}"))
    if examination.unguarded:
        lines.append(printable(f"unguarded: {examination.unguarded}"))
    if resume is None or not resume.is_verified:
        lines += _loading_lines(examination.run)
    return "\n".join(lines)


def moved_aside_message(resolved: ResolvedRun, folder: Path, moved: Path) -> str:
    """Format the message that another run's files were moved aside; with --resume, why it was not resumed."""
    reason = ""
    if resolved.config.trainer.resume_from_checkpoint != NEVER:
        reason = "no checkpoint to resume from and a different config: starting at step 0; "
    return printable(f"{folder} contained another run: {reason}its files were moved to {moved}")


def _loading_lines(resolved: ResolvedRun) -> list[str]:
    """Return a line on the initial weights of a fresh run, or no line if there is no description."""
    weights = initial_weights(resolved.config)
    text = "" if weights is None else describe_loading(resolved.config, Path(os.path.expanduser(weights)))
    return [printable(f"initial weights: {text}")] if text else []
