"""`evaluate similarity`, which runs in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.commands.evaluation import DATA, evaluate_in_child, output_folder
from launcher.io.files import require_present
from launcher.terminal.table import columns
from neobert.errors import EXIT_OK
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.plurals import counted
from neobert.runfiles.evaluation_report import score_text
from neobert.runfiles.model_folder import require_model_folder

MODULE, RESULT = "neobert.evaluation.similarity", "similarity.json"


def run(
    model: EmbeddingModel,
    data: Path,
    output: Path | None,
    names: Mapping[str, str | None],
    output_format: str,
) -> int:
    """Correlate the similarities of pairs with their scores; `names` are the columns of the table."""
    require_model_folder(Path(model.folder))
    require_present(data, DATA)
    content = {"model": asdict(model), "data": str(data.absolute()), "columns": dict(names)}
    with output_folder(output) as place:
        evaluate_in_child(MODULE, content, place / RESULT, _table, output_format)
    return EXIT_OK


def _table(report: Mapping[str, Any]) -> str:
    lines = [
        columns([[name, score_text(value)] for name, value in report["metrics"].items()]),
        counted(report["pairs"], "pair"),
    ]
    if report["truncated"]:
        lines.append(f"{counted(report['truncated'], 'text')} truncated")
    return "\n".join(lines)
