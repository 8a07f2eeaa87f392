"""`python -m neobert.bench REQUEST.json`: the report goes to standard output, progress to standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from neobert.bench.conductor import conduct
from neobert.bench.request import read_request
from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, ProjectError, write_error_file


def main(arguments: list[str]) -> int:
    """Run the measurement, and return the exit code."""
    try:
        report = conduct(read_request(Path(arguments[0])))
    except ProjectError as error:
        if not write_error_file(error):
            print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(json.dumps(report, indent=1))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
