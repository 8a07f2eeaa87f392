"""Error reporting: one clear message, and the same exit code in every output format."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from launcher.cli.arguments import UsageError, is_help_page_error, split_passthrough
from launcher.cli.options import AnyFormat
from launcher.io.shadowed_modules import REMOVE_SHADOW, describe_shadowed
from launcher.process.termination import TerminatedError, signal_name
from launcher.terminal import console
from launcher.terminal.console import describe_error
from neobert.atomic_write import NO_ROOM
from neobert.config.errors import MAX_SHOWN, ConfigError
from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_INTERRUPTED, EXIT_USAGE, ProjectError

if TYPE_CHECKING:
    from launcher.report.report import Report

SHADOWED = "HST006"
# Errors printed as plain text only: standard output, or the modules of the other formats, cannot be used.
UNFORMATTED = (console.OUTPUT_FAILED, SHADOWED)
LOST_WRITES = (*NO_ROOM, errno.EIO)
FORMAT_OPTION = "--output-format"
FORMATS = get_args(AnyFormat)
PARSER_WORDS = re.compile(r"Value error, |Input (?=should be )|, unable to parse string as an? \w+$")
"""Matches text that pydantic, which typer uses, adds to the message for an invalid value."""
FILE_OF_INIT = "init takes the file without an option: `init FILE`;"
MEANT = {
    ("init", "--output"): FILE_OF_INIT,
    ("init", "-o"): FILE_OF_INIT,
    ("train", "--output"): "did you mean --trainer.output_dir?",
    ("export", "--format"): "did you mean --to?",
    ("export", "--merge-adapter"): "remove --merge-adapter, checkpoints have their adapter merged;",
}
"""Hints for unknown options whose most similar option would mislead, by command and name."""
STOPPED = "stopped before there was a result; no process is left running"


def requested_format(arguments: Sequence[str]) -> str:
    """Return the output format of a command line, without parsing its other arguments; `text` by default."""
    ours, _ = split_passthrough(arguments)
    requested = "text"
    for token, following in zip(ours, [*ours, ""][1:], strict=True):
        name, equals, value = token.partition("=")
        if name.replace("_", "-") == FORMAT_OPTION:
            requested = value if equals else following
    return requested if requested in FORMATS else "text"


def report_exception(error: BaseException, output_format: str) -> int:
    """Report the exception that ended a command; return the exit code.

    An unexpected exception is raised instead if NEOBERT_TRACEBACK is 1.
    """
    if isinstance(error.__cause__, KeyboardInterrupt | TerminatedError):
        error = error.__cause__  # Python 3.11 raises RuntimeError if it interrupts the creation of a class
    if is_help_page_error(error) and output_format == "text":
        console.log(str(error))
        return EXIT_USAGE
    known = _as_project_error(error)
    if known is None and os.environ.get("NEOBERT_TRACEBACK") == "1":
        raise error
    return print_error(known or _unexpected_error(error), output_format)


def _as_project_error(error: BaseException) -> ProjectError | None:
    """Convert an expected exception to a ProjectError; return None for an unexpected one."""
    if isinstance(error, ProjectError):
        return error
    if isinstance(error, UsageError):
        return _usage_error(error)
    if isinstance(error, KeyboardInterrupt):
        return ProjectError("interrupted", f"Ctrl-C: {STOPPED}", exit_code=EXIT_INTERRUPTED)
    if isinstance(error, TerminatedError):
        name = signal_name(error.number)
        return ProjectError("terminated", f"{name}: {STOPPED}", exit_code=error.exit_code)
    if isinstance(error, OSError | UnicodeEncodeError):
        return _system_error(error)
    return None


def _usage_error(error: Any) -> ProjectError:
    """Convert an error of the command-line parser to a ProjectError."""
    command = error.ctx.command_path if error.ctx else "neobert-launch"
    similar = " or ".join(sorted(getattr(error, "possibilities", None) or ()))
    guess = f"did you mean {similar}?" if similar else ""
    guess = MEANT.get((error.ctx.info_name if error.ctx else "", getattr(error, "option_name", "")), guess)
    error.possibilities = None  # of an unknown option: named in the hint instead
    error.message = PARSER_WORDS.sub("", error.message)
    message = "no command is given" if is_help_page_error(error) else " ".join(error.format_message().split())
    hint = f"{guess} see `{command} --help`".lstrip()
    if type(error).__name__ == "MissingParameter" and error.param.param_type_name == "argument":
        # Of two arguments, the one given may not be the first.
        usage = " ".join((command, *error.ctx.command.collect_usage_pieces(error.ctx)))
        hint = f"write `{usage}`; --help explains it"
    return ProjectError(
        "usage", f"{message[:1].lower()}{message[1:]}".rstrip("."), hint, exit_code=EXIT_USAGE
    )


def _system_error(error: OSError | UnicodeEncodeError) -> ProjectError | None:
    """Convert an error of the file system or the locale to a ProjectError; return None for other errors."""
    if isinstance(error, UnicodeEncodeError):
        message = f"this locale cannot represent a name in this run: {error.object!a}"
        return ProjectError("locale", message, "set PYTHONUTF8=1, or LC_ALL=C.UTF-8", exit_code=EXIT_USAGE)
    if error.filename is not None:
        place = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
        message, hint = (
            f"this path cannot be used: {error.strerror}",
            "fix its permissions, or choose another path",
        )
        return ProjectError("unusable-path", message, hint, place)
    if isinstance(error, FileNotFoundError):  # of os.getcwd, which names no file
        message = f"the working directory was removed: {error.strerror}"
        hint = "change to a folder that exists, and run the same command again"
        return ProjectError("unusable-path", message, hint)
    return console.stdout_error(error) if error.errno in LOST_WRITES else None


def print_error(error: ProjectError, output_format: str) -> int:
    """Print an error and return its exit code.

    Text goes to stderr; other formats are written to stdout as a report.
    """
    if output_format == "text" or error.code in UNFORMATTED:
        console.log(_config_error_text(error) if isinstance(error, ConfigError) else describe_error(error))
        return error.exit_code
    from launcher.report.report import error_report

    report = error_report(error)
    _try_to_write(report, output_format)
    return report.exit_code


def _config_error_text(error: ConfigError) -> str:
    """Format the first `MAX_SHOWN` problems of a config as `lint` does, and the number of the others."""
    from launcher.report.formats.text import finding_text
    from launcher.report.report import error_findings

    texts = [finding_text(finding, on=sys.stderr) for finding in error_findings(error)]
    num_issues = len(error.issues)
    rest = [f"... and {num_issues - MAX_SHOWN} more"] if num_issues > MAX_SHOWN else []
    return "\n\n".join([*texts[: min(MAX_SHOWN, num_issues)], *rest, *texts[num_issues:]])


def _try_to_write(report: Report, output_format: str) -> None:
    """Write the report to stdout; if that fails, log the error on stderr."""
    from launcher.report.formats import print_report

    try:
        print_report(report, output_format)
    except ProjectError as error:
        console.log(describe_error(error))


def _unexpected_error(error: BaseException) -> ProjectError:
    """Convert an unexpected exception, such as a bug or a shadowed module, to a ProjectError.

    Its exit code is EXIT_CHECK_UNKNOWN.
    """
    if isinstance(error, ImportError) and (shadowed := describe_shadowed(sys.path)):
        return ProjectError(SHADOWED, shadowed, REMOVE_SHADOW, exit_code=EXIT_CHECK_UNKNOWN)
    kept = _save_traceback(error)
    trace = f"the traceback is in {kept}" if kept else "set NEOBERT_TRACEBACK=1 to print the traceback"
    message = f"neobert-launch failed: {type(error).__name__}: {error}"
    return ProjectError("unexpected", message, f"{trace}; please report it", exit_code=EXIT_CHECK_UNKNOWN)


def _save_traceback(error: BaseException) -> Path | None:
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
