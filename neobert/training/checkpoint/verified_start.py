"""The start that preflight verified, and the refusal of any other."""

from __future__ import annotations

from pathlib import Path

from neobert.errors import ProjectError
from neobert.receipt import VerifiedStart
from neobert.runfiles.checkpoint.folders import Found, belongs_to
from neobert.runfiles.checkpoint.refusal import CODE

HINT = "run the same command again: preflight then checks what is there now"


def refuse_other_start(
    found: Found | None, verified: VerifiedStart | None, run_dir: Path, *, is_again: bool
) -> None:
    """Raise `ProjectError` CKP007 where a session would start elsewhere than preflight verified.

    Args:
        found: the checkpoint that the trainer found; None for a start at step 0.
        verified: what the receipt names; None where it names nothing to compare with.
        is_again: a restart within a launch, which may start from any checkpoint of its own run.
    """
    if verified is None or _is_the_same(found, verified):
        return
    if is_again and found is not None and belongs_to(run_dir, found[0]):
        return
    message = f"preflight verified {_described(verified.step, verified.folder)} as the start of this run, "
    here = "no checkpoint" if found is None else _described(found[1].step, str(found[0]))
    raise ProjectError(CODE, f"{message}and the trainer found {here}", HINT, str(run_dir))


def _is_the_same(found: Found | None, verified: VerifiedStart) -> bool:
    if found is None or not verified.folder:
        return found is None and not verified.folder
    folder, manifest = found
    return manifest.step == verified.step and folder.resolve() == Path(verified.folder).resolve()


def _described(step: int, folder: str) -> str:
    return f"step {step:,} ({folder})" if folder else "step 0, without a checkpoint,"
