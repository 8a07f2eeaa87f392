"""`python -m neobert.evaluation.similarity REQUEST.json`: prints the result as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.similarity.files import read_scored_pairs
from neobert.json_program import serve


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the requested table, which is validated before torch is imported; return the report.

    Raises `ProjectError` for an invalid table or an unusable model.
    """
    model = EmbeddingModel(**request["model"])
    pairs = read_scored_pairs(Path(request["data"]), request["columns"], Path(model.folder))
    from neobert.evaluation.similarity.evaluate import evaluate_pairs

    return evaluate_pairs(pairs, model)


if __name__ == "__main__":
    sys.exit(serve(evaluate, sys.argv[1:]))
