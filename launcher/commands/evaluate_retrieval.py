"""`evaluate retrieval`, which runs in a child process."""

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

MODULE = "neobert.evaluation.retrieval"
RESULT, EMBEDDINGS = "retrieval.json", "corpus-embeddings.npy"


def run(model: EmbeddingModel, data: Path, output: Path | None, output_format: str) -> int:
    """Rank the documents of the corpus for every query, and print the retrieval metrics."""
    require_model_folder(Path(model.folder))
    require_present(data, DATA)
    with output_folder(output) as place:
        content = {
            "model": asdict(model),
            "data": str(data.absolute()),
            "output": str(place / EMBEDDINGS),
        }
        evaluate_in_child(MODULE, content, place / RESULT, _table, output_format)
    return EXIT_OK


def _table(report: Mapping[str, Any]) -> str:
    rows = [[name, score_text(value)] for name, value in report["metrics"].items()]
    lines = [
        columns(rows),
        f"{counted(report['queries'], 'query', 'queries')}, {counted(report['documents'], 'document')}",
    ]
    notes = {
        "unjudged_queries": ("query", "queries", "without a relevant document skipped"),
        "unknown_judgements": ("judgement", "judgements", "with unknown ids skipped"),
        "truncated": ("text", "texts", "truncated"),
    }
    for key, (noun, plural, note) in notes.items():
        if report[key]:
            lines.append(f"{counted(report[key], noun, plural)} {note}")
    return "\n".join(lines)
