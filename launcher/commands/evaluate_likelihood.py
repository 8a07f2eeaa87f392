"""`evaluate blimp` and `evaluate pseudo-perplexity`, which run in a child process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import require_working_directory
from launcher.io.files import make_folder, write_text
from launcher.process.json_child import ask
from launcher.terminal import console
from launcher.terminal.table import columns
from launcher.terminal.values import UNKNOWN, to_json
from neobert.errors import EXIT_OK

MODULE = "neobert.evaluation.likelihood"
HINT = "see the output above; the same command continues the evaluation"


@dataclass(frozen=True, slots=True)
class Model:
    """The model to evaluate, and how it computes. None: as the device prefers it."""

    folder: Path
    output: Path
    max_length: int | None
    dtype: str | None
    device: str | None


def run_blimp(model: Model, data: Path, pairs_per_paradigm: int | None, output_format: str) -> int:
    """Score minimal pairs, and print accuracies."""
    content = {"data": str(data.absolute()), "pairs_per_paradigm": pairs_per_paradigm}
    return _run("blimp", model, content, _blimp_table, output_format)


def run_pseudo_perplexity(
    model: Model, texts: Path, column: str | None, split: str, output_format: str
) -> int:
    """Score texts, and print their pseudo-perplexity."""
    content = {"data": str(texts.absolute()), "column": column, "split": split}
    return _run("pseudo-perplexity", model, content, _perplexity_table, output_format)


def _run(
    name: str,
    model: Model,
    content: Mapping[str, Any],
    table: Callable[[Mapping[str, Any]], str],
    output_format: str,
) -> int:
    require_working_directory()
    output = make_folder(model.output.absolute())
    settings = {
        "folder": str(model.folder.absolute()),
        "output": str(output / f"{name}-scores.npy"),
        "max_length": model.max_length,
        "dtype": model.dtype,
        "device": model.device,
    }
    report = ask(MODULE, {"evaluation": name, "settings": settings, **content}, hint=HINT)
    write_text(output / f"{name}.json", to_json(report) + "\n")
    console.write(to_json(report) if output_format == "json" else table(report))
    return EXIT_OK


def _blimp_table(report: Mapping[str, Any]) -> str:
    rows = [["phenomenon", "accuracy"]]
    rows += [[name, f"{100 * share:.1f}"] for name, share in report["phenomena"].items()]
    rows.append([f"mean of {len(report['paradigms'])} paradigms", f"{100 * report['accuracy']:.1f}"])
    lines = [columns(rows), f"{report['pairs']:,} pairs, {report['ties']:,} ties, which count as wrong"]
    return "\n".join([*lines, *_notes(report)])


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    for reason in report["not_comparable"]:
        yield f"not comparable with published scores: {reason}"
    if report["truncated"]:
        yield f"{report['truncated']:,} sentences were truncated"


def _perplexity_table(report: Mapping[str, Any]) -> str:
    names = {
        "pseudo-perplexity of tokens": "pseudo_perplexity",
        "mean of documents": "mean_of_documents",
        "median of documents": "median_of_documents",
    }
    rows = [[label, _shown(report[name])] for label, name in names.items()]
    counts = f"{report['documents']:,} documents, {report['tokens']:,} tokens"
    cut = f"; {report['truncated']:,} documents were truncated" if report["truncated"] else ""
    return f"{columns(rows)}\n{counts}{cut}"


def _shown(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"
