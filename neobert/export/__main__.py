"""`python -m neobert.export REQUEST.json`: the report goes to standard output, progress to standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, ProjectError, write_error_file
from neobert.export.run import export


def main(arguments: list[str]) -> int:
    """Export as requested, and return the exit code."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        folders = [Path(folder) for folder in request["folders"]]
        report = export(folders, request["formats"], Path(request["output"]), request["pooling"])
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
