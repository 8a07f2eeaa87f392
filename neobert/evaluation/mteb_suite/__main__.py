"""`python -m neobert.evaluation.mteb_suite REQUEST.json`: prints the result as JSON."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.json_program import serve

INSTALL = "pip install 'mteb>=2.26'"


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Run the requested tasks and return their report. Raises `ProjectError` if mteb is not installed."""
    if importlib.util.find_spec("mteb") is None:
        raise ProjectError("mteb-missing", "mteb is not installed", INSTALL, exit_code=EXIT_USAGE)
    from neobert.evaluation.mteb_suite.run import evaluate_tasks

    model = EmbeddingModel(**request["model"])
    return evaluate_tasks(model, Path(request["cache"]), request["benchmark"], request["tasks"])


if __name__ == "__main__":
    sys.exit(serve(evaluate, sys.argv[1:]))
