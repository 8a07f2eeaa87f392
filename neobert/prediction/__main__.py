"""Entry point of `python -m neobert.prediction REQUEST.json`: prints a JSON report; progress is on stderr."""

from __future__ import annotations

import sys

from neobert.json_program import serve
from neobert.prediction.job import run
from neobert.prediction.request import Request

if __name__ == "__main__":
    sys.exit(serve(lambda content: run(Request(**content)), sys.argv[1:]))
