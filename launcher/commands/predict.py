"""`predict`: labels, scores or words for the rows of a file, computed in a child process."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.commands.data import deliver_report
from launcher.commands.encode import CONTINUED, HINT, STOPPED, warn_of_lost_text
from launcher.commands.selection import require_working_directory
from launcher.io.files import expanded, require_writable
from launcher.process.json_child import ask
from launcher.terminal import console
from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, ProjectError
from neobert.prediction.request import Request
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.prediction"
STANDARD_INPUT = "-"


def run(request: Request, output_format: str) -> int:
    """Predict for the rows of a file; print the report, or without an output file the predictions."""
    require_working_directory()
    folder = expanded(request.folder)
    require_model_folder(folder)
    request = replace(request, folder=str(folder.absolute()))
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as scratch:
        if request.texts == STANDARD_INPUT:
            texts = Path(scratch, "input.txt")
            with texts.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            texts = expanded(request.texts).absolute()
        output = expanded(request.output).absolute() if request.output else Path(scratch, "output.jsonl")
        require_writable(output)
        report = _ask(replace(request, texts=str(texts), output=str(output)))
        if not request.output:
            console.write(output.read_text(encoding="utf-8").rstrip("\n"))
    if request.output:
        deliver_report(report, output_format)
    warn_of_lost_text(report)
    return EXIT_OK


def _ask(request: Request) -> dict[str, Any]:
    try:
        return ask(MODULE, asdict(request), doing="loading the model", hint=HINT)
    except KeyboardInterrupt:
        raise ProjectError("interrupted", STOPPED, CONTINUED, exit_code=EXIT_INTERRUPTED) from None
