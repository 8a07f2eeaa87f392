"""`python -m neobert.evaluation.glue REQUEST.json`: prepares the files of tasks and prints their counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.encoding.texts import whole_digest
from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.tasks import TASKS
from neobert.json_program import serve


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare the named tasks; return their counts, and a digest of the weights to evaluate."""
    data, output = Path(request["data"]), Path(request["output"])
    tasks = {name: prepare_task(TASKS[name], data, output / name) for name in request["tasks"]}
    files = sorted(Path(request["weights"]).glob("*.safetensors"))
    return {"tasks": tasks, "weights": " ".join(whole_digest(file)[1] for file in files)}


if __name__ == "__main__":
    sys.exit(serve(prepare, sys.argv[1:]))
