"""`predict`: labels, scores or words for the rows of a file, computed in a child process."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.commands.data import deliver_report
from launcher.commands.encode import CONTINUED, HINT, STOPPED, warn_of_lost_text
from launcher.commands.selection import require_working_directory
from launcher.commands.texts_argument import texts_and_output
from launcher.io.files import expanded
from launcher.process.json_child import ask
from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, ProjectError
from neobert.prediction.request import Request
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.prediction"


def run(request: Request, texts: Path, output: Path | None, output_format: str) -> int:
    """Predict for the rows of a file; print the report, or without an output file the predictions."""
    require_working_directory()
    folder = expanded(request.folder)
    require_model_folder(folder)
    with texts_and_output(texts, output) as (source, place):
        report = _ask(replace(request, folder=str(folder.absolute()), texts=source, output=place))
    if output is not None:
        deliver_report(report, output_format)
    warn_of_lost_text(report)
    return EXIT_OK


def _ask(request: Request) -> dict[str, Any]:
    try:
        return ask(MODULE, asdict(request), doing="loading the model", hint=HINT)
    except KeyboardInterrupt:
        raise ProjectError("interrupted", STOPPED, CONTINUED, exit_code=EXIT_INTERRUPTED) from None
