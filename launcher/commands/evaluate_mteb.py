"""`evaluate mteb`, which runs in a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.commands.evaluation import evaluate_in_child, output_folder
from launcher.terminal.table import columns
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.evaluation_report import score_text

MODULE = "neobert.evaluation.mteb_suite"
RESULT, CACHE = "mteb.json", "mteb"


def run(
    model: EmbeddingModel,
    benchmark: str | None,
    tasks: Sequence[str],
    output: Path | None,
    output_format: str,
) -> int:
    """Run the tasks or the benchmark, and print the scores by task type; return 1 if a task failed."""
    if (benchmark is None) == (not tasks):
        message = "exactly one of --benchmark and --tasks is required"
        hint = "add --benchmark 'MTEB(eng, v2)' or --tasks STSBenchmark,NFCorpus"
        raise ProjectError("mteb-tasks", message, hint, exit_code=EXIT_USAGE)
    content = {"model": asdict(model), "benchmark": benchmark, "tasks": list(tasks)}
    with output_folder(output) as place:
        content["cache"] = str(place / CACHE)
        report = evaluate_in_child(MODULE, content, place / RESULT, _table, output_format)
    return EXIT_CHECK_FAILED if report["failed"] else EXIT_OK


def _table(report: Mapping[str, Any]) -> str:
    rows = [["type", "score"], *([name, score_text(value)] for name, value in report["types"].items())]
    rows.append(["mean of types", score_text(report["mean_of_types"])])
    rows.append([f"mean of {counted(len(report['scores']), 'task')}", score_text(report["mean_of_tasks"])])
    failed = (printable(f"{name}: {message}") for name, message in report["failed"].items())
    return "\n".join([columns(rows), *failed])
