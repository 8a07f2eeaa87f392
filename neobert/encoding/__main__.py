"""Entry point of `python -m neobert.encoding REQUEST.json`: prints a JSON report; progress is on stderr."""

from __future__ import annotations

import sys

from neobert.encoding.job import run
from neobert.encoding.request import Request
from neobert.json_program import serve

if __name__ == "__main__":
    sys.exit(serve(lambda content: run(Request(**content)), sys.argv[1:]))
