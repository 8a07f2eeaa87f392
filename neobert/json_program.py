"""Main function of child programs that read a JSON request from a file and print a JSON report."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, ProjectError, write_error_file
from neobert.progress import report_to_launcher


def serve(
    handle: Callable[[dict[str, Any]], dict[str, Any]],
    arguments: Sequence[str],
    log_level: int = logging.WARNING,
) -> int:
    """Read the JSON file named by the only argument, print the report of `handle`, return the exit code.

    A `ProjectError` is written to $NEOBERT_ERROR_FILE for the parent process, or else to standard error.
    """
    logging.basicConfig(level=log_level, stream=sys.stderr, format="%(message)s")
    report_to_launcher()
    try:
        with redirect_stdout(sys.stderr):  # libraries print, and standard output holds the report only
            report = handle(_read_request(arguments))
    except ProjectError as error:
        if not write_error_file(error):
            print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(json.dumps(report))
    return EXIT_OK


def _read_request(arguments: Sequence[str]) -> dict[str, Any]:
    hint = "pass the path of one JSON file"
    if len(arguments) != 1:
        message = f"expected one argument (the path of a JSON file), got {len(arguments)}"
        raise ProjectError("CFG011", message, hint, "arguments", EXIT_USAGE)
    try:
        request: dict[str, Any] = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProjectError(
            "CFG011", f"the request cannot be read: {error}", hint, arguments[0], EXIT_USAGE
        ) from error
    return request
