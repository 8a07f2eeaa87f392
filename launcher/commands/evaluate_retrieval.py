"""`evaluate retrieval`, which runs in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import require_working_directory
from launcher.io.files import make_folder, write_text
from launcher.process.json_child import ask
from launcher.terminal import console
from launcher.terminal.table import columns
from launcher.terminal.values import to_json
from neobert.errors import EXIT_OK

MODULE = "neobert.evaluation.retrieval"
RESULT, EMBEDDINGS = "retrieval.json", "corpus-embeddings.npy"
HINT = "see the output above; the same command continues the evaluation"


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of the command. None: as the folder declares it, or as the device prefers it."""

    folder: Path
    pooling: str | None
    max_length: int | None
    dtype: str | None
    device: str | None
    query_prefix: str
    document_prefix: str


def run(request: Request, data: Path, output: Path, output_format: str) -> int:
    """Rank the corpus for every query, and print the metrics."""
    require_working_directory()
    output = make_folder(output.absolute())
    settings = asdict(request) | {
        "folder": str(request.folder.absolute()),
        "output": str(output / EMBEDDINGS),
    }
    report = ask(MODULE, {"settings": settings, "data": str(data.absolute())}, hint=HINT)
    write_text(output / RESULT, to_json(report) + "\n")
    console.write(to_json(report) if output_format == "json" else _table(report))
    return EXIT_OK


def _table(report: Mapping[str, Any]) -> str:
    rows = [[name, f"{100 * value:.1f}"] for name, value in report["metrics"].items()]
    lines = [columns(rows), f"{report['queries']:,} queries, {report['documents']:,} documents"]
    counts = {
        "queries without a relevant document are left out": report["unjudged_queries"],
        "judgements name unknown ids and are left out": report["unknown_judgements"],
        "texts were truncated": report["truncated"],
    }
    return "\n".join([*lines, *(f"{count:,} {what}" for what, count in counts.items() if count)])
