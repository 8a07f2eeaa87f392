"""Evaluations in a child process, whose report is saved and printed as JSON or as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.commands.selection import require_working_directory
from launcher.io.files import results_folder, write_text
from launcher.process.json_child import ask
from launcher.terminal import console
from launcher.terminal.values import result_json

HINT = "see the output above; run the same command again to continue the evaluation"


def output_folder(output: Path) -> Path:
    """Return the absolute path for results. Raises `ProjectError` without a working directory."""
    require_working_directory()
    return output.absolute()


def evaluate_in_child(
    module: str,
    request: Mapping[str, Any],
    file: Path,
    table: Callable[[Mapping[str, Any]], str],
    output_format: str,
) -> dict[str, Any]:
    """Run `python -m MODULE` on the request, write its report to `file`, print and return it.

    The folder of the file is created; it is removed again if the child refuses the request.
    """
    with results_folder(file.parent):
        report = ask(module, request, doing="loading the model", hint=HINT)
        text = result_json(report)
        write_text(file, text + "\n")
    console.write(text if output_format == "json" else table(report))
    return report
