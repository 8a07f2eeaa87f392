"""`python -m neobert.search REQUEST.json`: prints the texts found, as JSON."""

from __future__ import annotations

import sys
from typing import Any

from neobert.json_program import serve


def search(request: dict[str, Any]) -> dict[str, Any]:
    """Search an index as the request specifies; return the result as JSON values.

    Raises `ProjectError` if the index, the model or a text cannot be used.
    """
    from neobert.search.job import Request, run

    return run(Request(**request))


if __name__ == "__main__":
    sys.exit(serve(search, sys.argv[1:]))
