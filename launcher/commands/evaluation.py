"""`evaluate`, except `glue`: evaluations in child processes, whose reports are saved and printed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import require_working_directory
from launcher.io.files import expand_user, require_existing, require_source, results_folder, write_text
from launcher.process.json_child import run_json_child
from launcher.terminal import console
from launcher.terminal.table import format_columns
from launcher.terminal.values import UNKNOWN, result_json
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.plurals import counted, percent
from neobert.printable import printable
from neobert.runfiles.evaluation_report import format_score
from neobert.runfiles.model_folder import require_model_folder

HINT = "see the output above; with --output, the same command continues the evaluation"
DATA = "DATA"
SHOWN_SAMPLES = 3
LENGTHS, LONGEST = "--lengths", 2**20
NUMBER = re.compile("([0-9]{1,9})(k?)", re.IGNORECASE)
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """Model to evaluate and its compute settings; None selects the default of the device."""

    folder: Path
    dtype: str | None
    device: str | None

    def settings(self) -> dict[str, Any]:
        """Return the values that a child process needs. Raises `ProjectError` if the folder has no model."""
        folder = expand_user(self.folder)
        require_model_folder(folder)
        return {"folder": str(folder.absolute()), "dtype": self.dtype, "device": self.device}


@contextmanager
def output_folder(output: Path | None) -> Iterator[Path]:
    """Yield the absolute path of a folder for results, or of a temporary folder if `output` is None.

    The folder is created, and removed again if it is new and still empty after an error. Raises
    FileNotFoundError if the working directory was removed.
    """
    require_working_directory()
    if output is None:
        with tempfile.TemporaryDirectory(prefix="neobert-launch-") as scratch:
            yield Path(scratch)
    else:
        folder = output.absolute()
        with results_folder(folder):
            yield folder


def evaluate_in_child(
    module: str, request: Report, file: Path, table: Callable[[Report], str], output_format: str
) -> dict[str, Any]:
    """Run `python -m neobert.evaluation.MODULE` on the request; save, print and return its report.

    Raises `ProjectError` if the evaluation fails or the report cannot be written.
    """
    report = run_json_child(f"neobert.evaluation.{module}", request, doing="loading the model", hint=HINT)
    text = result_json(report)
    write_text(file, text + "\n")
    console.write(text if output_format == "json" else table(report))
    return report


def run_blimp(
    model: EvaluatedModel, data: Path, pairs: int | None, output: Path | None, output_format: str
) -> int:
    """Score the first `pairs` minimal pairs of each paradigm in `data`, and print the accuracies."""
    require_existing(data, DATA)
    content = {"data": str(data.absolute()), "pairs_per_paradigm": pairs}
    return _score_texts("blimp", model, None, content, output, output_format)


def run_perplexity(
    model: EvaluatedModel,
    max_length: int | None,
    texts: Mapping[str, Any],
    output: Path | None,
    output_format: str,
) -> int:
    """Score the texts, and print their (pseudo-)perplexity over tokens and per document."""
    content = {**texts, "data": require_source(texts["data"], "TEXTS")}
    return _score_texts("pseudo-perplexity", model, max_length, content, output, output_format)


def _score_texts(
    name: str,
    model: EvaluatedModel,
    max_length: int | None,
    content: Report,
    output: Path | None,
    output_format: str,
) -> int:
    settings = model.settings() | {"max_length": max_length}
    table = _blimp_table if name == "blimp" else _perplexity_table
    with output_folder(output) as place:
        settings["output"] = str(place / f"{name}-scores.npy")
        request = {"evaluation": name, "settings": settings, **content}
        evaluate_in_child("likelihood", request, place / f"{name}.json", table, output_format)
    return EXIT_OK


def _blimp_table(report: Report) -> str:
    rows = [["phenomenon", "accuracy"]]
    rows += [[name, format_score(share)] for name, share in report["phenomena"].items()]
    rows.append(
        [f"mean of {counted(len(report['paradigms']), 'paradigm')}", format_score(report["accuracy"])]
    )
    pairs, ties = counted(report["pairs"], "pair"), counted(report["ties"], "tie")
    notes = [f"not comparable with published scores: {reason}" for reason in report["not_comparable"]]
    return "\n".join(
        [
            format_columns(rows),
            f"{pairs}, {ties} (scored as wrong)",
            *notes,
            *_truncation_notes(report, "sentence"),
        ]
    )


def _perplexity_table(report: Report) -> str:
    names = {
        "pseudo-perplexity of tokens": "pseudo_perplexity",
        "perplexity of tokens": "perplexity",
        "perplexity of bytes": "byte_perplexity",
        "bits per byte": "bits_per_byte",
        "mean of documents": "mean_of_documents",
        "median of documents": "median_of_documents",
    }
    values = {label: report[name] for label, name in names.items() if name in report}
    rows = [[label, UNKNOWN if value is None else f"{value:,.2f}"] for label, value in values.items()]
    counts = [counted(report["documents"], "document"), counted(report["tokens"], "token")]
    counted_texts = "; ".join([", ".join(counts), *_truncation_notes(report, "document")])
    return f"{format_columns(rows)}\n{counted_texts}\nsource: {printable(report['source'])}"


def _truncation_notes(report: Report, noun: str) -> list[str]:
    return [f"{counted(report['truncated'], noun)} truncated"] if report["truncated"] else []


def run_passkey(
    model: EvaluatedModel,
    test: Mapping[str, Any],
    min_accuracy: float | None,
    output: Path | None,
    output_format: str,
) -> int:
    """Test the model, and print the accuracy by length and depth.

    Args:
        test: lengths in tokens, documents of each length and depth (`trials`), and their seed.
        min_accuracy: minimum accuracy of every length in percent; below it, the exit code is 1.
    """
    request = {**test, **model.settings()}
    with output_folder(output) as place:
        report = evaluate_in_child("passkey", request, place / "passkey.json", _passkey_table, output_format)
    worst, accuracy = min(report["accuracy"].items(), key=lambda each: each[1])
    if min_accuracy is None or 100 * accuracy >= min_accuracy:
        return EXIT_OK
    console.log(f"fail: accuracy is {accuracy:.1%} at {int(worst):,} tokens (minimum {min_accuracy:g}%)")
    return EXIT_CHECK_FAILED


def parse_lengths(text: str) -> list[int]:
    """Parse `512,1k,4k` to lengths in tokens, sorted and without repetitions; 1k is 1,024.

    Raises `ProjectError` for a part that is not a number from 1 to `LONGEST`.
    """
    return sorted({_parse_length(part.strip()) for part in text.split(",")})


def _parse_length(part: str) -> int:
    number = NUMBER.fullmatch(part)
    tokens = int(number[1]) * (1024 if number[2] else 1) if number else 0
    if not 0 < tokens <= LONGEST:
        wrong = repr(part[:20]) if part else "an empty part"
        message = f"{LENGTHS} has {wrong}, which is not a number of tokens from 1 to {LONGEST:,}"
        raise ProjectError("usage", message, f"write {LENGTHS} 512,1k,4k", LENGTHS, EXIT_USAGE)
    return tokens


def _passkey_table(report: Report) -> str:
    depths = list(next(iter(report["by_depth"].values())))
    rows = [["tokens", "accuracy", *(f"depth {depth}" for depth in depths)]]
    for length, by_depth in report["by_depth"].items():
        scores = (report["accuracy"][length], *by_depth.values())
        rows.append([f"{int(length):,}", *map(format_score, scores)])
    return f"{format_columns(rows)}\nin percent; chance is {format_score(report['chance'])}"


def run_generation(
    model: EvaluatedModel, prompts: Path, max_tokens: int, output: Path | None, output_format: str
) -> int:
    """Continue the prompts and print the continuations; with `output`, save them and print the first ones."""
    settings = model.settings()
    require_existing(prompts, "PROMPTS")
    request = {**settings, "prompts": str(prompts.absolute()), "max_tokens": max_tokens}
    with output_folder(output) as place:
        file = place / "generation.json"

        saved = None if output is None else file
        evaluate_in_child(
            "generation", request, file, lambda report: _continuations_text(report, saved), output_format
        )
    return EXIT_OK


def _continuations_text(report: Report, saved: Path | None) -> str:
    lines = []
    for sample in report["samples"][: SHOWN_SAMPLES if saved else None]:
        prompt = sample.get("prompt") or sample["messages"][-1]["content"]
        lines += [*(printable(text, keep="\n\t") for text in (f"> {prompt}", sample["continuation"])), ""]
    summary = report["summary"]
    lines.append(
        f"{counted(summary['prompts'], 'prompt')}, {summary['mean_tokens']:,.1f} tokens on average, "
        f"{percent(summary['share_stopped'])} ended by themselves{f'; all: {saved}' if saved else ''}"
    )
    return "\n".join(lines)


def run_similarity(
    model: EmbeddingModel,
    data: Path,
    names: Mapping[str, str | None],
    output: Path | None,
    output_format: str,
) -> int:
    """Correlate the similarities of pairs of texts with their scores, and print the correlations.

    `names` are the table's columns of the two texts and the score; None selects the column of the
    model's run, or a usual name.
    """
    request = _embedding_request(model, data) | {"columns": names}
    with output_folder(output) as place:
        evaluate_in_child("similarity", request, place / "similarity.json", _similarity_text, output_format)
    return EXIT_OK


def run_retrieval(model: EmbeddingModel, data: Path, output: Path | None, output_format: str) -> int:
    """Rank the documents of the corpus for every query, and print the retrieval metrics."""
    request = _embedding_request(model, data)
    with output_folder(output) as place:
        request["output"] = str(place / "corpus-embeddings.npy")
        evaluate_in_child("retrieval", request, place / "retrieval.json", _retrieval_text, output_format)
    return EXIT_OK


def _embedding_request(model: EmbeddingModel, data: Path) -> dict[str, Any]:
    require_model_folder(Path(model.folder))
    require_existing(data, DATA)
    return {"model": asdict(model), "data": str(data.absolute())}


def _similarity_text(report: Report) -> str:
    return "\n".join(
        [_metrics_table(report), counted(report["pairs"], "pair"), *_truncation_notes(report, "text")]
    )


def _retrieval_text(report: Report) -> str:
    counts = f"{counted(report['queries'], 'query', 'queries')}, {counted(report['documents'], 'document')}"
    lines = [_metrics_table(report), counts]
    if report["unjudged_queries"]:
        queries = counted(report["unjudged_queries"], "query", "queries")
        lines.append(f"{queries} without a relevant document skipped")
    if report["unknown_judgements"]:
        lines.append(f"{counted(report['unknown_judgements'], 'judgement')} with unknown ids skipped")
    return "\n".join([*lines, *_truncation_notes(report, "text")])


def _metrics_table(report: Report) -> str:
    return format_columns([[name, format_score(value)] for name, value in report["metrics"].items()])


def run_mteb(
    model: EmbeddingModel,
    benchmark: str | None,
    tasks: Sequence[str],
    output: Path | None,
    output_format: str,
) -> int:
    """Run the tasks or the benchmark, and print the scores by task type; return 1 if a task failed.

    Raises `ProjectError` unless exactly one of `benchmark` and `tasks` is given.
    """
    if (benchmark is None) == (not tasks):
        message = (
            f"--benchmark and --tasks are {'both' if tasks else 'neither'} given, but exactly one is needed"
        )
        hint = "add --benchmark 'MTEB(eng, v2)' or --tasks STSBenchmark,NFCorpus"
        raise ProjectError("mteb-tasks", message, hint, exit_code=EXIT_USAGE)
    request = {"model": asdict(model), "benchmark": benchmark, "tasks": list(tasks)}
    with output_folder(output) as place:
        request["cache"] = str(place / "mteb")
        report = evaluate_in_child("mteb_suite", request, place / "mteb.json", _mteb_table, output_format)
    return EXIT_CHECK_FAILED if report["failed"] else EXIT_OK


def _mteb_table(report: Report) -> str:
    rows = [["type", "score"], *([name, format_score(value)] for name, value in report["types"].items())]
    rows.append(["mean of types", format_score(report["mean_of_types"])])
    rows.append([f"mean of {counted(len(report['scores']), 'task')}", format_score(report["mean_of_tasks"])])
    failed = (printable(f"{name}: {message}") for name, message in report["failed"].items())
    return "\n".join([format_columns(rows), *failed])
