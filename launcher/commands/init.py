"""`init`: write a first run file, from options or prompts."""

from __future__ import annotations

import os
import re
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from launcher.commands.starter_file import DEVICES, SIZES, Device, SizeName, Starter, content_of
from launcher.io.files import make_folder, writing
from launcher.terminal import console
from launcher.terminal.values import result_json, show_count, show_duration
from neobert.config.corpora import LINES_TO_DOCUMENTS
from neobert.config.schema import DatasetConfig
from neobert.data.sources.preview import Preview, preview_of
from neobert.data.sources.rows import text_rows
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.printable import printable
from profiles.registry import resolve_run
from validators.planning import plan_run

NVIDIA_DEVICE = Path("/dev/nvidiactl")
YAML_SUFFIXES = (".yaml", ".yml")
BUILTIN = "builtin:python-docs"
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
HEAD_BYTES = 2**20
SET_COLUMN = "set dataset.text_column"
UTF_16 = (BOM_UTF16_LE, BOM_UTF16_BE)

T = TypeVar("T", bound=str)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of `init`; None for options that were not given."""

    file: Path
    text: Path | None
    dataset: str | None
    size: SizeName | None
    device: Device | None


def run(request: Request, output_format: str) -> int:
    """Write the run file and print the next commands."""
    _check_file(request.file)
    starter = _starter(request, asks=sys.stdin.isatty() and output_format == "text")
    _write(request.file, content_of(starter, request.file.name))
    resolved = resolve_run(None, [request.file])
    _warn_of_one_document(str(resolved.config.dataset.path or ""))
    plan = plan_run(resolved)
    result = {
        "file": str(request.file),
        "profile": starter.device,
        "next": [f"neobert-launch {verb} {quote(str(request.file))}" for verb in ("lint", "plan", "train")],
        "checkpoint": os.path.join(resolved.config.trainer.output_dir, "checkpoints", "latest"),
        "parameters": plan.num_parameters.value,
        "eta_s": plan.eta_s.value,
    }
    console.write(result_json(result) if output_format == "json" else _report(result))
    return EXIT_OK


def _write(file: Path, content: str) -> None:
    encoded = content.encode("utf-8")
    make_folder(file.parent)
    with writing(file, "choose another folder"), file.open("xb") as new:
        new.write(encoded)


def _report(result: dict[str, Any]) -> str:
    commands: list[str] = result["next"]
    glosses = ("check the file", "size, memory and time", "Ctrl-C saves; the same command continues")
    width = max(map(len, commands)) + 2
    size, eta = show_count(result["parameters"]), show_duration(result["eta_s"])
    file = console.paint(printable(result["file"]), "bold")
    lines = [f"wrote {file}: {size} parameters, about {eta} of training", "", "next:"]
    for command, gloss in zip(commands, glosses, strict=True):
        lines.append(f"  {printable(command):{width}}{console.paint(gloss, 'dim')}")
    lines += [
        "",
        "then, in Python:",
        f"  pipeline('fill-mask', {result['checkpoint']!r}, trust_remote_code=True)",
    ]
    return "\n".join(lines)


def _warn_of_one_document(path: str) -> None:
    """Warn if a .txt file has no blank line in its first MiB.

    It is then a single document, and none is left for evaluation. UTF-16 is left to the reader of the data,
    which names the conversion.
    """
    if not path.lower().endswith(".txt") or not os.path.isfile(path):
        return
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    # As the reader of the data does: without any LF, lines end with CR.
    lines = head if b"\n" in head else head.replace(b"\r", b"\n")
    if head.startswith(UTF_16) or BLANK_LINE.search(lines):
        return
    _warn(f"{path} has no blank line, so it is one document", LINES_TO_DOCUMENTS.format(quote(path)))


def _check_file(file: Path) -> None:
    if os.path.lexists(file):
        message, hint = (
            "the file exists, and init does not overwrite files",
            "choose another file: neobert-launch init FILE",
        )
        raise _usage("occupied-file", message, hint, file)
    if file.suffix.lower() not in YAML_SUFFIXES:
        raise _usage(
            "unusable-path", "init writes YAML files only", f"change the name to {file.stem}.yaml", file
        )


def _starter(request: Request, *, asks: bool) -> Starter:
    text, dataset = request.text, request.dataset
    if text is not None and dataset is not None:
        raise _usage("usage", "--text and --dataset are both given", "keep one of --text and --dataset")
    if text is None and dataset is None:
        if not asks:
            hint = f"add --text FILE or --dataset NAME; --dataset {BUILTIN} needs no text of your own"
            raise _usage(
                "usage", "neither --text nor --dataset is given, and standard input is not a terminal", hint
            )
        text, dataset = _ask_text()
    found = None if text is None else _preview(text)
    default_device: Device = "gpu" if NVIDIA_DEVICE.exists() else "cpu"
    device = request.device or _choose("device", DEVICES, default_device, asks=asks)
    sizes = {
        name: f"{size.num_hidden_layers} x {size.hidden_size}, {size.gloss}" for name, size in SIZES.items()
    }
    default_size: SizeName = "tiny" if device == "cpu" else "small"
    size = request.size or _choose("size", sizes, default_size, asks=asks)
    if found is not None:
        _warn_of_text(found, request.file)
    return Starter(
        text=_relative(text, request.file) if text is not None else "",
        dataset=dataset or "",
        size=size,
        device=device,
        num_bytes=None if found is None else found.size_bytes,
        is_plain=found is not None and found.is_plain,
        stem=request.file.stem,
    )


def _preview(text: Path) -> Preview:
    """Inspect the text. Raises ProjectError if a run could not read it, whatever keys the run file has."""
    dataset = DatasetConfig(path=str(text))
    found = preview_of(dataset, text_rows(dataset))
    error = found.error
    if error is not None and SET_COLUMN not in error.hint:
        hint = error.hint.replace("set dataset.path to", "set --text to")
        raise _usage("unusable-path", error.message, hint, error.place)
    return found


def _warn_of_text(found: Preview, file: Path) -> None:
    """Warn of a text column that the run file has to name, and of files that are not read."""
    if found.error is not None:
        hint = found.error.hint.replace(SET_COLUMN, f"in {file}, {SET_COLUMN}")
        _warn(f"{found.error.place}: {found.error.message}", hint)
    for each in found.left_out:
        if each.reason:
            _warn(f"not read: {each.num_files:,} x {each.kind} ({each.example}: {each.reason})", each.hint)


def _warn(message: str, hint: str) -> None:
    console.tell(printable(f"warning: {message}"))
    console.tell(printable(f"  = hint: {hint}"))


def _relative(text: Path, file: Path) -> str:
    """Return the path to write into the run file: relative to its folder, unless `text` is absolute."""
    return str(text) if text.is_absolute() else os.path.relpath(text, file.parent)


def _ask_text() -> tuple[Path | None, str | None]:
    """Prompt until the answer is an existing path or a dataset; return (path, None) or (None, dataset)."""
    question = f"text (file, folder, or hub:NAME) [{BUILTIN}]: "

    def read(answer: str) -> tuple[Path | None, str | None] | None:
        if not answer or answer == BUILTIN:
            return None, BUILTIN
        if answer.startswith("hub:"):
            return None, answer.removeprefix("hub:")
        path = Path(os.path.expanduser(answer))
        return (path, None) if path.exists() else None

    return _ask(question, read, lambda answer: f"{answer}: no such file or folder")


def _choose(name: str, choices: dict[T, str], default: T, *, asks: bool) -> T:
    if not asks:
        return default
    console.tell(f"{name}:")
    for choice, gloss in choices.items():
        console.tell(f"  {choice:6} {gloss}")

    def read(answer: str) -> T | None:
        return next((choice for choice in choices if choice == (answer or default)), None)

    return _ask(f"{name} [{default}]: ", read, lambda _: f"enter one of {', '.join(choices)}")


def _ask(question: str, read: Callable[[str], Answer | None], complain: Callable[[str], str]) -> Answer:
    while True:
        print(question, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise _usage(
                "usage", "standard input ended before the last prompt", "pass --text, --size and --device"
            )
        value = read(line.strip())
        if value is not None:
            return value
        console.tell(f"  {printable(complain(line.strip()))}")


def _usage(code: str, message: str, hint: str, place: Path | str = "") -> ProjectError:
    return ProjectError(code, message, hint, str(place), EXIT_USAGE)
