"""`encode`, `predict` and `search`: embeddings, predictions and similar texts, from child processes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Any

from launcher.commands.data import print_report
from launcher.commands.selection import require_working_directory
from launcher.io.files import expand_user, make_folder, require_existing, require_source, require_writable
from launcher.process.json_child import run_json_child
from launcher.terminal import console
from launcher.terminal.table import format_columns
from launcher.terminal.values import result_json
from neobert.encoding.request import Request as EncodingRequest
from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import counted, percent
from neobert.prediction.request import Request as PredictionRequest
from neobert.printable import printable
from neobert.runfiles.model_folder import require_model_folder

MODULES = {EncodingRequest: "neobert.encoding", PredictionRequest: "neobert.prediction"}
LARGE_SHARE_LOST = 0.1
STOPPED, CONTINUED = "Ctrl-C: stopped", "run the same command again to continue with the remaining texts"
HINT = "see the output above; if memory ran out, lower --max-length. The same command continues the job"

CLASSES, UNREAD = "classes", "unread_labels"
STANDARD_INPUT = "-"

SEARCH_MODULE = "neobert.search"
SEARCH_HINT = "see the output above"


def run(request: EncodingRequest | PredictionRequest, output_format: str) -> int:
    """Encode or predict the texts; print the report, or the output as JSON lines if it has no file."""
    require_working_directory()
    folder = expand_user(request.folder)
    require_model_folder(folder)
    if isinstance(request, EncodingRequest) and request.is_index:
        make_folder(expand_user(request.output).parent)
    with texts_and_output(request.texts, Path(request.output) if request.output else None) as places:
        texts, output = places
        content = replace(request, folder=str(folder.absolute()), texts=texts, output=output)
        report = _run_job(MODULES[type(request)], asdict(content))
    if request.output:
        is_text = output_format == "text"
        hidden = (CLASSES, UNREAD) if is_text else ()  # as text, a table and a warning after the report
        print_report({key: each for key, each in report.items() if key not in hidden}, output_format)
        log_classes(report.get(CLASSES, {}) if is_text else {})
    warn_of_unread_labels(report)
    warn_of_lost_text(report)
    return EXIT_OK


def _run_job(module: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Run a job and return its report. After Ctrl-C, raises ProjectError with a hint to continue the job."""
    try:
        return run_json_child(module, content, doing="loading the model", hint=HINT)
    except KeyboardInterrupt:
        raise ProjectError("interrupted", STOPPED, CONTINUED, exit_code=EXIT_INTERRUPTED) from None


def log_classes(classes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print scores by class, and the predictions for the texts or words of each class."""
    if not classes:
        return
    unit = "words" if "words" in next(iter(classes.values())) else "texts"
    rows = [["class", unit, "precision", "recall", "F1", "predicted as"]]
    for name, each in classes.items():
        shares = [f"{each[key]:.3f}" for key in ("precision", "recall", "f1")]
        predicted = ", ".join(
            f"{count:,} {printable(other)}" for other, count in each["predicted_as"].items()
        )
        rows.append([printable(name), f"{each[unit]:,}", *shares, predicted])
    console.write(f"\n{format_columns(rows)}")


def warn_of_unread_labels(report: Mapping[str, Any]) -> None:
    """Log a warning about rows that are not scored, because their labels could not be read."""
    if unread := report.get(UNREAD):
        rows = f"{unread['rows']:,} of {counted(report['texts'], 'row')}"
        console.log(f"warning: {rows} not scored: {printable(unread['first'])}")
        console.log("  = hint: write labels as in the model's training data, so that these rows are scored")


def warn_of_lost_text(report: Mapping[str, Any]) -> None:
    """Log a warning if more than `LARGE_SHARE_LOST` of all tokens were cut off."""
    truncated, lost = report["truncated"], report["tokens_lost"]
    share = lost / max(1, lost + report["tokens"])
    if share > LARGE_SHARE_LOST:
        console.log(
            f"warning: {truncated:,} of {counted(report['texts'], 'text')} "
            f"{'exceeds' if truncated == 1 else 'exceed'} {report['max_length']:,} tokens; "
            f"{percent(share)} of all tokens were cut off"
        )
        console.log("  = hint: split long texts into passages, one per line or row")


@contextmanager
def texts_and_output(texts: str, output: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the path or Hub name of the texts, and the path of the output; print JSON lines if there is none.

    `-` is the lines of standard input; an argument with whitespace that does not exist as a path is one
    text. Raises `ProjectError` for a path that does not exist, or an output that cannot be written or is the
    file of the texts.
    """
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as scratch:
        place = expand_user(output).absolute() if output is not None else Path(scratch, "output.jsonl")
        require_writable(place)
        source = _texts_source(texts, Path(scratch))
        if place.exists() and Path(source).exists() and place.samefile(source):
            message = "the output file is also the file of the texts, which it would replace"
            raise ProjectError("output-is-input", message, "pass another --output", str(place), EXIT_USAGE)
        try:
            yield source, str(place)
        except ProjectError as error:
            if texts == STANDARD_INPUT:
                error.place = error.place.replace(source, "standard input")
            raise
        if output is None:
            console.write(place.read_text(encoding="utf-8").rstrip("\n"))


def _texts_source(texts: str, scratch: Path) -> str:
    if texts == STANDARD_INPUT:
        lines = scratch / "input.txt"
        with lines.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return str(lines)
    # Path.exists raises for a text that is longer than a name may be.
    if len(texts.split()) > 1 and not os.path.exists(expand_user(texts)):
        row = scratch / "input.jsonl"
        row.write_text(json.dumps({"text": texts}), encoding="utf-8")
        return str(row)
    hint = "pass an existing file or folder as TEXTS, or - to read a text of one word from standard input"
    return require_source(Path(texts), "TEXTS", hint)


def search(
    index: Path, query: str, model: Path | None, settings: Mapping[str, Any], output_format: str
) -> int:
    """Print the texts of the index that are most similar to each query.

    A `query` of `-` reads queries from standard input, one per line. `model` None uses the model of the
    index. Raises `ProjectError` for an empty query, or a folder that does not exist.
    """
    require_working_directory()
    index = expand_user(index).absolute()
    command = f"neobert-launch encode MODEL TEXTS --index {quote(str(index))}"
    require_existing(index, "DIR", f"pass the folder of an index, or create one with `{command}`")
    if model is not None:
        model = expand_user(model).absolute()
        require_model_folder(model)
    content = {
        "index": str(index),
        "queries": _read_queries(query),
        "model": None if model is None else str(model),
        **settings,
    }
    report = run_json_child(SEARCH_MODULE, content, doing="loading the model", hint=SEARCH_HINT)
    if output_format == "json":
        console.write(result_json(report))
    else:
        console.write("\n\n".join(_results_text(each, report["results"]) for each in report["results"]))
    return EXIT_OK


def _read_queries(query: str) -> list[str]:
    """Return the query, or the lines of standard input. Raises `ProjectError` if they are empty."""
    is_read = query == STANDARD_INPUT  # other line ends than \n may be inside a query
    lines = sys.stdin.buffer.read().decode("utf-8-sig", "replace").split("\n") if is_read else [query]
    queries = [line.removesuffix("\r") for line in lines if line.strip()]
    if not queries:
        raise ProjectError("search-query", "the query is empty", "pass a text as QUERY", exit_code=EXIT_USAGE)
    return queries


def _results_text(result: Mapping[str, Any], results: Sequence[Any]) -> str:
    """Return score, row, file and text of each passage found; the query comes first if there are several."""
    rows = [
        [
            f"{each['score']:.4f}",
            str(each["row"]),
            *([each["file"]] if "file" in each else []),
            " ".join(each["text"].split()),
        ]
        for each in result["found"]
    ]
    heading = [" ".join(result["query"].split())] if len(results) > 1 else []
    return "\n".join([*heading, format_columns(rows)])
