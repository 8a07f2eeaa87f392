"""Texts and output of commands that use a model: also standard input, one text, and no file."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.io.files import expanded, require_source, require_writable
from launcher.terminal import console
from neobert.errors import ProjectError

STANDARD_INPUT = "-"


@contextmanager
def texts_and_output(texts: Path, output: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the path or Hub name of the texts, and the path of the output; print JSON lines if there is none.

    `-` is the lines of standard input; an argument with white space that does not exist as a path is one
    text. Raises `ProjectError` for a path that does not exist, or an output that cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as scratch:
        place = expanded(output).absolute() if output is not None else Path(scratch, "output.jsonl")
        require_writable(place)
        source = _source(texts, Path(scratch))
        try:
            yield source, str(place)
        except ProjectError as error:
            if str(texts) == STANDARD_INPUT:
                error.place = error.place.replace(source, "standard input")
            raise
        if output is None:
            console.write(place.read_text(encoding="utf-8").rstrip("\n"))


def _source(texts: Path, scratch: Path) -> str:
    if str(texts) == STANDARD_INPUT:
        lines = scratch / "input.txt"
        with lines.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return str(lines)
    if len(str(texts).split()) > 1 and not expanded(texts).exists():
        row = scratch / "input.jsonl"
        row.write_text(json.dumps({"text": str(texts)}), encoding="utf-8")
        return str(row)
    return require_source(texts, "TEXTS")
