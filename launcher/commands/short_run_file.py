"""Run file of `train --from MODEL --text PATH`: its name, and the command that wrote it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from glob import has_magic
from pathlib import Path

from launcher.commands.from_weights import (
    RunFileRequest,
    default_device,
    determines_other_keys,
    make_run_file,
    select_determining_keys,
    write_from_weights,
)
from launcher.commands.starting_weights import OPTION
from launcher.commands.weights_run_file import ADAPTER
from launcher.io.files import open_regular
from launcher.preflight.hub_weights import newest_commit
from launcher.terminal import console
from neobert.config.text_formats import without_suffixes
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.table import named_weights
from neobert.printable import printable
from profiles.registry import resolve_run

LARGEST_FILE = 2**20


def find_run_file(
    weights: str | None, text: Path | None, context: int | None, overrides: Sequence[str]
) -> Path:
    """Write the run file of `train --from` into the working directory, or find it, and return its path.

    The same command finds its file again. The name contains the label column, the problem and the adapter
    type if they are given, because the same weights and text may have a run for each.

    A file that another command wrote is replaced if it is unedited and has no run. Raises `ProjectError` for
    any other file of that name, and if only one of `weights` and `text` is given.
    """
    if weights is None or text is None:
        given, missing = ("--text", OPTION) if weights is None else (OPTION, "--text")
        hint = f"add {missing}, or write a run file first: neobert-launch init"
        raise ProjectError("usage", f"{given} is given without {missing}", hint, "", EXIT_USAGE)
    tasks = [each.removeprefix("task=") for each in overrides if each.startswith("task=")]
    named = select_determining_keys(overrides)
    choices = (".label_column", ".problem", ADAPTER)
    stated = [_plain_file_name(value) for key, value in named.items() if key.endswith(choices)]
    name = "-".join(
        [
            _stem_from_path(weights),
            _stem_from_path(str(text)),
            *stated,
            *([] if context is None else [str(context)]),
        ]
    )
    file, task = Path(f"{name}.yaml"), tasks[-1] if tasks else None
    request = RunFileRequest(file, weights, task, text, None, default_device(), context, named)
    exists = os.path.lexists(file)
    if exists and (written := _read_or_empty(file)).partition("\n")[0] == f"# {printable(request.command)}":
        console.log(f"using {file}, which this command wrote")
        _note_moved_branch(request)
        return file
    if exists and not _is_unused(request, written):
        raise _existing_file_error(request)
    notes = write_from_weights(request, replaces=exists)
    verb = "replaced an unedited file without a run:" if exists else "wrote"
    for line in (f"{verb} {file}", *notes):
        console.log(printable(line))
    return file


def _read_or_empty(file: Path) -> str:
    """Return the text of the file; empty if it is not UTF-8, not a regular file, or unreadable."""
    with suppress(OSError, UnicodeDecodeError), open_regular(file) as opened:
        return opened.read(LARGEST_FILE).decode()
    return ""


def _is_unused(request: RunFileRequest, written: str) -> bool:
    """Return whether the command in the file's first line still writes this text, and no run was started."""
    with suppress(ProjectError):
        earlier = _earlier_request(request, written.partition("\n")[0])
        if earlier is not None and make_run_file(earlier).content == written:
            return not os.path.lexists(resolve_run(None, [request.file]).config.trainer.output_dir)
    return False


def _earlier_request(request: RunFileRequest, line: str) -> RunFileRequest | None:
    """Return the request of the command in the line, or None unless only its task and named keys differ."""
    with suppress(ValueError):
        words = shlex.split(line)[3:]
        given = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=False)}
        named = {key: value for key, value in given.items() if determines_other_keys(key)}
        earlier = replace(request, task=given.get("task"), named=named)
        return earlier if line == f"# {printable(earlier.command)}" else None
    return None


def _existing_file_error(request: RunFileRequest) -> ProjectError:
    again = shlex.quote(str(request.file))
    message = "the file exists, and another command wrote it"
    other = request.file.with_stem(f"{request.file.stem}-2")
    another = replace(request, file=other).command
    hint = f"rename or remove {again}, or train it with `neobert-launch train {again}`, "
    hint += f"or write another with `{another}`"
    return ProjectError("occupied-file", message, hint, str(request.file), EXIT_USAGE)


def _note_moved_branch(request: RunFileRequest) -> None:
    """Print a note if a Hub branch has moved since the run file was written; the run uses the old commit."""
    name, _, revision = str(request.weights).partition("@")
    _, pinned = named_weights(resolve_run(None, [request.file]).config)
    if pinned and (newest := newest_commit(name, revision or None)) not in ("", pinned):
        branch = f"{name}@{revision or 'main'}"
        uses = f"{request.file} still uses {pinned[:12]} (model.revision)"
        message = f"{branch} has moved to {newest[:12]}; {uses}"
        console.log(printable(f"note: {message}"))


def _stem_from_path(path: str) -> str:
    """Return a file name derived from a path (of a file, without suffixes) or a repository."""
    place = Path(path).expanduser().absolute()
    place = next(each for each in (place, *place.parents) if not has_magic(each.name))
    name = without_suffixes(place).name if place.is_file() else place.name.partition("@")[0]
    return _plain_file_name(name)


def _plain_file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "", name) or "text"
