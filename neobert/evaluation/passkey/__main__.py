"""`python -m neobert.evaluation.passkey REQUEST.json`: prints the accuracy by length and depth as JSON."""

from __future__ import annotations

import sys
from typing import Any

from neobert.evaluation.passkey.evaluate import Settings, evaluate_passkey
from neobert.json_program import serve


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Run the passkey test and return its report. Raises `ProjectError` as `evaluate_passkey` does."""
    return evaluate_passkey(Settings(**request | {"lengths": tuple(request["lengths"])}))


if __name__ == "__main__":
    sys.exit(serve(evaluate, sys.argv[1:]))
