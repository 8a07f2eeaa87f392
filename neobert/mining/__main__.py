"""`python -m neobert.mining REQUEST.json`: prints a JSON report; progress is on stderr."""

from __future__ import annotations

import sys
from typing import Any

from neobert.json_program import serve
from neobert.mining.request import Request


def mine(request: dict[str, Any]) -> dict[str, Any]:
    """Mine hard negatives, write them with their pairs, and return the numbers of pairs and negatives.

    `request`: the fields of `Request`. Raises `ProjectError` for an unusable file or model.
    """
    from neobert.mining.job import run

    return run(Request(**request))


if __name__ == "__main__":
    sys.exit(serve(mine, sys.argv[1:]))
