"""How errors reach people and machines: one clear message, the same exit code in every format."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

from launcher import console
from launcher.shadow import find_shadowed
from neobert.config.errors import ConfigError
from neobert.errors import EXIT_CHECK_UNKNOWN, ProjectError


def deliver_error(error: ProjectError, output_format: str) -> int:
    """Print an error: as a report for machines, else as text on standard error. Returns the exit code."""
    if output_format == "text" or error.code == console.OUTPUT_FAILED:
        console.tell(str(error) if isinstance(error, ConfigError) else describe(error))
        return error.exit_code
    from launcher.formats import render
    from launcher.report import report_of_error

    report = report_of_error(error)
    _write_anyway(render(report, output_format))
    return report.exit_code


def describe(error: ProjectError) -> str:
    """Place, sentence, code, and the way out on a line of its own."""
    place = f"{error.place}: " if error.place else ""
    hint = f"\n  = hint: {error.hint}" if error.hint else ""
    return (
        f"{console.paint('error', 'red', 'bold', on=sys.stderr)}: {place}{error.message} [{error.code}]{hint}"
    )


def _write_anyway(text: str) -> None:
    """Where standard output fails too, standard error gets what can be said in a line."""
    try:
        console.write(text)
    except ProjectError as error:
        console.tell(describe(error))


def deliver_unexpected(error: Exception) -> int:
    """An error that no command foresaw: a full standard output, a foreign module in place of ours, a fault.

    Nothing was judged then, so the code is that of a check that could not run.
    """
    if isinstance(error, ProjectError):
        return deliver_error(error, "text")
    if isinstance(error, ImportError) and (foreign := find_shadowed(sys.path)):
        named = ", ".join(f"{module} comes from {file}" for module, file in foreign.items())
        hint = "install the project into an environment of its own"
        return deliver_error(ProjectError("HST006", named, hint, exit_code=EXIT_CHECK_UNKNOWN), "text")
    kept = _keep_traceback(error)
    where = f"the traceback is in {kept}" if kept else "NEOBERT_TRACEBACK=1 prints the traceback"
    console.tell(f"neobert-launch failed: {type(error).__name__}: {error}\n  = {where}; please report it")
    return EXIT_CHECK_UNKNOWN


def _keep_traceback(error: Exception) -> Path | None:
    lines = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="neobert-launch-",
            suffix=".traceback",
            delete=False,
            encoding="utf-8",
            errors="replace",
        ) as file:
            file.write(lines)
    except OSError:
        return None
    return Path(file.name)
