"""How errors reach people and machines: one clear message, the same exit code in every format."""

from __future__ import annotations

import errno
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from launcher.cli.arguments import UsageError, split_passthrough
from launcher.cli.options import AnyFormat
from launcher.io.shadowed_modules import find_shadowed
from launcher.process.termination import TerminatedError, signal_name
from launcher.terminal import console
from launcher.terminal.error_text import describe
from neobert.config.errors import ConfigError
from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_INTERRUPTED, EXIT_USAGE, ProjectError
from neobert.printable import printable

if TYPE_CHECKING:
    from launcher.report.report import Report

SHADOWED = "HST006"
# What writes the other formats is not to be had then: its output, or its own modules.
UNFORMATTED = (console.OUTPUT_FAILED, SHADOWED)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
FORMAT_OPTION = "--output-format"
FORMATS = get_args(AnyFormat)
STOPPED = "ended before there was a result; nothing is left running"


def asked_format(arguments: Sequence[str]) -> str:
    """The output format that a command line names, also where the rest of it cannot be understood."""
    ours, _ = split_passthrough(arguments)
    found = "text"
    for token, following in zip(ours, [*ours, ""][1:], strict=True):
        name, equals, value = token.partition("=")
        if name.replace("_", "-") == FORMAT_OPTION:
            found = value if equals else following
    return found if found in FORMATS else "text"


def deliver(error: BaseException, output_format: str) -> int:
    """Report whatever ended a command. Returns the exit code."""
    if isinstance(error, UsageError) and output_format == "text":
        console.tell(_usage_text(error))
        return EXIT_USAGE
    told = _as_told(error)
    if told is None and os.environ.get("NEOBERT_TRACEBACK") == "1":
        raise error
    return deliver_error(told or _unexpected(error), output_format)


def _usage_text(error: Any) -> str:
    """The parser's own text; what it quotes of the command line is cleaned."""
    error.message = printable(error.message)
    shown = io.StringIO()
    error.show(shown)
    return shown.getvalue().rstrip("\n")


def _as_told(error: BaseException) -> ProjectError | None:
    """The error in this project's terms; None for one that no command foresaw."""
    if isinstance(error, ProjectError):
        return error
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx else "neobert-launch"
        return ProjectError("usage", error.format_message(), f"see `{command} --help`", exit_code=EXIT_USAGE)
    if isinstance(error, KeyboardInterrupt):
        return ProjectError("interrupted", f"Ctrl-C: {STOPPED}", exit_code=EXIT_INTERRUPTED)
    if isinstance(error, TerminatedError):
        name = signal_name(error.number)
        return ProjectError("terminated", f"{name}: {STOPPED}", exit_code=error.exit_code)
    if isinstance(error, OSError | UnicodeEncodeError):
        return _of_the_system(error)
    return None


def _of_the_system(error: OSError | UnicodeEncodeError) -> ProjectError | None:
    """What a file system or a locale refuses is nobody's fault here."""
    if isinstance(error, UnicodeEncodeError):
        message = f"a name in this run cannot be written in this locale: {error.object!a}"
        return ProjectError("locale", message, "set PYTHONUTF8=1, or LC_ALL=C.UTF-8", exit_code=EXIT_USAGE)
    if error.filename is not None:
        place = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
        message, hint = f"cannot be used: {error.strerror}", "mend its permissions, or name another place"
        return ProjectError("unusable-path", message, hint, place)
    return console.unwritten(error) if error.errno in NO_ROOM else None


def deliver_error(error: ProjectError, output_format: str) -> int:
    """Print an error: as a report for machines, else as text on standard error. Returns the exit code."""
    if output_format == "text" or error.code in UNFORMATTED:
        console.tell(str(error) if isinstance(error, ConfigError) else describe(error))
        return error.exit_code
    from launcher.report.report import report_of_error

    report = report_of_error(error)
    _write_anyway(report, output_format)
    return report.exit_code


def _write_anyway(report: Report, output_format: str) -> None:
    """Where standard output fails too, standard error gets what can be said in a line."""
    from launcher.report.formats import deliver

    try:
        deliver(report, output_format)
    except ProjectError as error:
        console.tell(describe(error))


def _unexpected(error: BaseException) -> ProjectError:
    """An error that no command foresaw: a foreign module in place of ours, a fault.

    Nothing was judged then, so the code is that of a check that could not run.
    """
    if isinstance(error, ImportError) and (foreign := find_shadowed(sys.path)):
        named = ", ".join(f"{module} comes from {file}" for module, file in foreign.items())
        hint = "install the project into an environment of its own"
        return ProjectError(SHADOWED, named, hint, exit_code=EXIT_CHECK_UNKNOWN)
    kept = _keep_traceback(error)
    where = f"the traceback is in {kept}" if kept else "NEOBERT_TRACEBACK=1 prints the traceback"
    message = f"neobert-launch failed: {type(error).__name__}: {error}"
    return ProjectError("unexpected", message, f"{where}; please report it", exit_code=EXIT_CHECK_UNKNOWN)


def _keep_traceback(error: BaseException) -> Path | None:
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
