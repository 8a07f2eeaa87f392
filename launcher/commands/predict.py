"""`predict`: labels, scores or words for the rows of a file, computed in a child process."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from launcher.commands.data import deliver_report
from launcher.commands.encode import ask_resumable, warn_of_lost_text
from launcher.commands.selection import require_working_directory
from launcher.commands.texts_argument import texts_and_output
from launcher.io.files import expanded
from neobert.errors import EXIT_OK
from neobert.prediction.request import Request
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.prediction"


def run(request: Request, output_format: str) -> int:
    """Predict for the rows of a file; print the report, or without an output file the predictions."""
    require_working_directory()
    folder = expanded(request.folder)
    require_model_folder(folder)
    with texts_and_output(Path(request.texts), Path(request.output) if request.output else None) as places:
        texts, output = places
        content = replace(request, folder=str(folder.absolute()), texts=texts, output=output)
        report = ask_resumable(MODULE, asdict(content))
    if request.output:
        deliver_report(report, output_format)
    warn_of_lost_text(report)
    return EXIT_OK
