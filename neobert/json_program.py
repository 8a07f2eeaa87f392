"""Programs that read a JSON file and print a JSON report, for the launcher."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, ProjectError, write_error_file


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]], arguments: Sequence[str]) -> int:
    """Answer the request in the file that the first argument names, and return the exit code.

    An error goes to the file that the parent process named, else to standard error.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    try:
        with redirect_stdout(sys.stderr):  # libraries print, and the report is alone on standard output
            report = answer(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    except ProjectError as error:
        if not write_error_file(error):
            print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(json.dumps(report))
    return EXIT_OK
