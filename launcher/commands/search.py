"""`search`: the texts of an index that are closest to a query, found in a child process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from launcher.commands.selection import require_working_directory
from launcher.commands.texts_argument import STANDARD_INPUT
from launcher.io.files import expanded, require_present
from launcher.process.json_child import report_of
from launcher.terminal import console
from launcher.terminal.table import columns
from launcher.terminal.values import result_json
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.search"
HINT = "see the output above"


def run(index: Path, query: str, model: Path | None, settings: Mapping[str, Any], output_format: str) -> int:
    """Print the closest texts of each query."""
    require_working_directory()
    index = expanded(index).absolute()
    require_present(index, "DIR", f"write one: neobert-launch encode MODEL TEXTS --index {quote(str(index))}")
    if model is not None:
        model = expanded(model).absolute()
        require_model_folder(model)
    content = {
        "index": str(index),
        "queries": _queries(query),
        "model": None if model is None else str(model),
        **settings,
    }
    report = report_of(MODULE, content, doing="loading the model", hint=HINT)
    if output_format == "json":
        console.write(result_json(report))
    else:
        console.write("\n\n".join(_text(each, report["results"]) for each in report["results"]))
    return EXIT_OK


def _queries(query: str) -> list[str]:
    """Return the query, or the lines of standard input. Raises `ProjectError` if they are empty."""
    is_read = query == STANDARD_INPUT  # other line ends than \n may be inside a query
    lines = sys.stdin.buffer.read().decode("utf-8-sig", "replace").split("\n") if is_read else [query]
    queries = [line.removesuffix("\r") for line in lines if line.strip()]
    if not queries:
        raise ProjectError("search-query", "the query is empty", "pass a text as QUERY", exit_code=EXIT_USAGE)
    return queries


def _text(result: Mapping[str, Any], results: Sequence[Any]) -> str:
    """Return score, row, file and text of each passage found; with several queries, after the query."""
    rows = [
        [f"{each['score']:.4f}", str(each["row"]), *([each["file"]] if "file" in each else []), _line(each)]
        for each in result["found"]
    ]
    heading = [" ".join(result["query"].split())] if len(results) > 1 else []
    return "\n".join([*heading, columns(rows)])


def _line(found: Mapping[str, Any]) -> str:
    return " ".join(found["text"].split())
