"""Entry points of this package: a resolved config in, a JSON report or one clear error out."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError, write_error_file


def report_to_stdout(job: Callable[[RunConfig], dict[str, Any]], arguments: list[str]) -> int:
    """Run a job on the config whose path is the one argument; print its report as JSON, return the exit code.

    An error goes to the error file of the parent process or, without one, to standard error.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        report = job(read_config(arguments))
    except ProjectError as error:
        if not write_error_file(error):
            print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=1))
    return EXIT_OK


def read_config(arguments: list[str]) -> RunConfig:
    """Read the resolved config at the one path. Raises ProjectError CFG011."""
    if len(arguments) != 1:
        raise ProjectError(
            "CFG011",
            "takes the path of one resolved config",
            "pass the path of a RESOLVED.json",
            "arguments",
            EXIT_USAGE,
        )
    path = Path(arguments[0])
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProjectError(
            "CFG011", f"cannot be read: {error}", "pass the path of a RESOLVED.json", str(path), EXIT_USAGE
        ) from error
    return from_dict(content)
