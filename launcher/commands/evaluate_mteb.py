"""`evaluate mteb`, which runs in a child process."""

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
from launcher.terminal.values import UNKNOWN, to_json
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.printable import printable

MODULE = "neobert.evaluation.mteb_suite"
RESULT, CACHE = "mteb.json", "mteb"
HINT = "see the output above; the same command continues the evaluation"


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of the command. None: as the folder declares it, or as the device prefers it."""

    folder: Path
    benchmark: str | None
    tasks: tuple[str, ...]
    pooling: str | None
    max_length: int | None
    dtype: str | None
    device: str | None
    query_prefix: str
    document_prefix: str


def run(request: Request, output: Path, output_format: str) -> int:
    """Run the tasks, and print scores by type; exits with 1 if a task failed."""
    require_working_directory()
    if (request.benchmark is None) == (not request.tasks):
        message = "name a benchmark or tasks, one of the two"
        hint = "add --benchmark 'MTEB(eng, v2)' or --tasks STSBenchmark,NFCorpus"
        raise ProjectError("mteb-tasks", message, hint, exit_code=EXIT_USAGE)
    output = make_folder(output.absolute())
    content = asdict(request) | {
        "folder": str(request.folder.absolute()),
        "cache": str(output / CACHE),
        "tasks": list(request.tasks),
    }
    report = ask(MODULE, content, hint=HINT)
    write_text(output / RESULT, to_json(report) + "\n")
    console.write(to_json(report) if output_format == "json" else _table(report))
    return EXIT_CHECK_FAILED if report["failed"] else EXIT_OK


def _table(report: Mapping[str, Any]) -> str:
    rows = [["type", "score"], *([name, _shown(value)] for name, value in report["types"].items())]
    rows.append(["mean of types", _shown(report["mean_of_types"])])
    rows.append([f"mean of {len(report['scores'])} tasks", _shown(report["mean_of_tasks"])])
    failed = (printable(f"{name}: {message}") for name, message in report["failed"].items())
    return "\n".join([columns(rows), *failed])


def _shown(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f}"
