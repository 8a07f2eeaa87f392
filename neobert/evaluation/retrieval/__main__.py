"""`python -m neobert.evaluation.retrieval REQUEST.json`: prints the result as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.evaluation.retrieval.evaluate import Settings, evaluate_folder
from neobert.json_program import serve


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the folder that the request names."""
    settings = Settings(**request["settings"] | {"output": Path(request["settings"]["output"])})
    return evaluate_folder(Path(request["data"]), settings)


if __name__ == "__main__":
    sys.exit(serve(evaluate, sys.argv[1:]))
