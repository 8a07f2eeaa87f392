"""`python -m neobert.bench REQUEST.json`: print the report to standard output, progress to standard error."""

from __future__ import annotations

import sys

from neobert.bench.conductor import run_benchmark
from neobert.bench.request import Request
from neobert.json_program import serve

if __name__ == "__main__":
    sys.exit(serve(lambda content: run_benchmark(Request(**content)), sys.argv[1:]))
