"""Evaluations in a child process, whose report is saved and printed as JSON or as a table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.commands.selection import require_working_directory
from launcher.io.files import results_folder, write_text
from launcher.process.json_child import report_of
from launcher.terminal import console
from launcher.terminal.values import result_json

HINT = "see the output above; with --output, the same command continues the evaluation"
DATA = "DATA"


@contextmanager
def output_folder(output: Path | None) -> Iterator[Path]:
    """Yield the absolute path of a folder for results; without `output`, of one that is removed afterwards.

    The folder is created; it is removed again if it is new and still empty after an error. Raises
    `ProjectError` without a working directory.
    """
    require_working_directory()
    if output is None:
        with tempfile.TemporaryDirectory(prefix="neobert-launch-") as scratch:
            yield Path(scratch)
    else:
        folder = output.absolute()
        with results_folder(folder):
            yield folder


def evaluate_in_child(
    module: str,
    request: Mapping[str, Any],
    file: Path,
    table: Callable[[Mapping[str, Any]], str],
    output_format: str,
) -> dict[str, Any]:
    """Run `python -m MODULE` on the request, write its report to `file`, print and return it."""
    report = report_of(module, request, doing="loading the model", hint=HINT)
    text = result_json(report)
    write_text(file, text + "\n")
    console.write(text if output_format == "json" else table(report))
    return report
