"""Command to run after a launch: use the model, or resume."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from launcher.rundir.directory import halt_removal_command
from launcher.rundir.records import read_json
from neobert.errors import EXIT_OK
from neobert.plan.tokenizer_contents import ROLE_SPELLINGS, SETTINGS, content_or_empty
from neobert.runfiles.checkpoint.folders import BEST, follow_pointer
from neobert.runfiles.run_dir import CHECKPOINTS, HALT, RESOLVED
from neobert.tasks.short_commands import SHORT_COMMANDS
from neobert.tasks.specs import SPECS

MODELING_CODE = "modeling_neobert.py"
"""Name of the file with the model class in checkpoints whose class is not part of transformers."""


def next_command(exit_code: int, checkpoint: Path | None, folder: Path) -> str:
    """Return the command that uses the model of a finished run, or resumes an unfinished run.

    The task of the model decides: predict labels or a masked word, chat, continue prompts or encode texts.
    Uses `checkpoints/best` if the run has one. A resume first removes a HALT file.
    """
    if exit_code == EXIT_OK and checkpoint:
        checkpoint = follow_pointer(folder / CHECKPOINTS, BEST) or checkpoint
        resolved = read_json(folder / RESOLVED) or {}
        spec = SPECS.get(str(resolved.get("task")))
        if spec is None:  # a damaged record
            trust = ", trust_remote_code=True" if (checkpoint / MODELING_CODE).exists() else ""
            return f"AutoModel.from_pretrained({str(checkpoint)!r}{trust})"
        if spec.predicts == "labels":
            return f"{shlex.join(['neobert-launch', 'predict', str(checkpoint)])} FILE"
        if spec.predicts == "pairs":
            return f"{shlex.join(['neobert-launch', 'encode', str(checkpoint)])} TEXTS --index FOLDER"
        if spec.stores_targets:
            return shlex.join(["neobert-launch", "chat", str(checkpoint)])
        if spec.predicts == "next":
            generation = shlex.join(["neobert-launch", "evaluate", "generation", str(checkpoint)])
            return f"{generation} FILE"
        return shlex.join(["neobert-launch", "predict", str(checkpoint), _text_with_mask(checkpoint)])
    again = resume_command(has_checkpoint=checkpoint is not None)
    return f"{halt_removal_command(folder)} && {again}" if (folder / HALT).exists() else again


def _text_with_mask(checkpoint: Path) -> str:
    """Return an example of a text for `predict`, with the mask token of the checkpoint's tokenizer."""
    mask = content_or_empty(checkpoint / SETTINGS).get("mask_token")
    return f"A text with a {mask if isinstance(mask, str) else ROLE_SPELLINGS['mask_token'][0]}."


def resume_command(*, has_checkpoint: bool) -> str:
    """Return this launch's command line, quoted for the shell, with --resume auto.

    Before the first checkpoint of the run, --resume PATH is kept, so that it starts from that checkpoint
    again. Otherwise --receipt is removed, because a receipt for another start would be rejected.
    """
    given = sys.argv[1:]
    if not {*given[:1]} & {"train", *SHORT_COMMANDS}:
        return shlex.join(["neobert-launch", *given])  # bench speedrun resumes without an option
    starts = _remove_option(given.copy(), "--resume")
    if starts and not has_checkpoint:
        return shlex.join(["neobert-launch", *given])
    _remove_option(given, "--resume")
    if starts[-1:] != ["auto"]:
        _remove_option(given, "--receipt")
    return shlex.join(["neobert-launch", *given[:1], "--resume", "auto", *given[1:]])


def _remove_option(arguments: list[str], option: str) -> list[str]:
    """Remove an option from a command line, in place, and return its values."""
    values = []
    for index in reversed(range(len(arguments))):
        name, equals, value = arguments[index].partition("=")
        if name == option:
            removed = arguments[index : index + (1 if equals else 2)]
            values.append(value if equals else removed[-1])
            del arguments[index : index + len(removed)]
    return values[::-1]
