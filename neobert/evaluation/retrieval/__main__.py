"""`python -m neobert.evaluation.retrieval REQUEST.json`: prints the result as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.retrieval.files import read_collection
from neobert.json_program import serve


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the requested BEIR folder, which is validated before torch is imported; return the report.

    Raises `ProjectError` for an invalid folder or an unusable model.
    """
    collection = read_collection(Path(request["data"]))
    from neobert.evaluation.retrieval.evaluate import evaluate_collection

    return evaluate_collection(collection, EmbeddingModel(**request["model"]), Path(request["output"]))


if __name__ == "__main__":
    sys.exit(serve(evaluate, sys.argv[1:]))
