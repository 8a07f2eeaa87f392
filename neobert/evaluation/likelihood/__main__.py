"""`python -m neobert.evaluation.likelihood REQUEST.json`: prints the result of one evaluation as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.evaluation.likelihood.blimp import evaluate_blimp
from neobert.evaluation.likelihood.job import Settings
from neobert.evaluation.likelihood.pseudo_perplexity import evaluate_texts
from neobert.json_program import serve


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate minimal pairs or (pseudo-)perplexity, as requested, and return the report.

    Raises `ProjectError` for unusable data or an unusable model.
    """
    settings = Settings(**request["settings"] | {"output": Path(request["settings"]["output"])})
    data = Path(request["data"])
    if request["evaluation"] == "blimp":
        return evaluate_blimp(data, settings, request["pairs_per_paradigm"])
    return evaluate_texts(data, request["column"], request["split"], settings)


if __name__ == "__main__":
    sys.exit(serve(evaluate, sys.argv[1:]))
