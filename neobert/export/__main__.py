"""Export process: `python -m neobert.export REQUEST.json` prints a JSON report, and progress to stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.export.run import export
from neobert.json_program import serve


def run_export(request: dict[str, Any]) -> dict[str, Any]:
    """Run the requested export and return its report. Raises `ProjectError` as `export` does."""
    folders = [Path(folder) for folder in request["folders"]]
    results = [Path(file) for file in request["results"]]
    output, dtype = Path(request["output"]), request["dtype"]
    return export(folders, request["formats"], output, request["pooling"], results, dtype)


if __name__ == "__main__":
    sys.exit(serve(run_export, sys.argv[1:]))
