"""`python -m neobert.evaluation.glue REQUEST.json`: prepares the files of tasks and prints their counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.tasks import TASKS
from neobert.json_program import serve
from neobert.runfiles.checkpoint.model_files import weights_digest


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare the files of the requested tasks; return row counts and a digest of the weights to evaluate.

    Raises `ProjectError` as `prepare_task` does.
    """
    output = Path(request["output"])
    tasks = {name: prepare_task(TASKS[name], request["data"], output / name) for name in request["tasks"]}
    return {"tasks": tasks, "weights": weights_digest(Path(request["weights"]))}


if __name__ == "__main__":
    sys.exit(serve(prepare, sys.argv[1:]))
