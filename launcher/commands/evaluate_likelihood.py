"""`evaluate blimp`, `perplexity` and `pseudo-perplexity`, which run in a child process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.commands.evaluation import DATA, evaluate_in_child, output_folder
from launcher.io.files import require_present, require_source
from launcher.terminal.table import columns
from launcher.terminal.values import UNKNOWN
from neobert.errors import EXIT_OK
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.evaluation_report import score_text
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.evaluation.likelihood"


@dataclass(frozen=True, slots=True)
class Model:
    """Model to evaluate and its compute settings; None selects the default of the device."""

    folder: Path
    output: Path | None
    max_length: int | None
    dtype: str | None
    device: str | None


def run_blimp(model: Model, data: Path, pairs_per_paradigm: int | None, output_format: str) -> int:
    """Score the minimal pairs in `data`, and print the accuracy of each phenomenon.

    pairs_per_paradigm: maximum number of pairs of each paradigm; None for all.
    """
    require_present(data, DATA)
    content = {"data": str(data.absolute()), "pairs_per_paradigm": pairs_per_paradigm}
    return _run("blimp", model, content, _blimp_table, output_format)


def run_pseudo_perplexity(
    model: Model, texts: Path, column: str | None, split: str, output_format: str
) -> int:
    """Score the texts, and print their (pseudo-)perplexity over tokens and per document."""
    content = {"data": require_source(texts, "TEXTS"), "column": column, "split": split}
    return _run("pseudo-perplexity", model, content, _perplexity_table, output_format)


def _run(
    name: str,
    model: Model,
    content: Mapping[str, Any],
    table: Callable[[Mapping[str, Any]], str],
    output_format: str,
) -> int:
    require_model_folder(model.folder)
    with output_folder(model.output) as output:
        paths = {"folder": str(model.folder.absolute()), "output": str(output / f"{name}-scores.npy")}
        request = {"evaluation": name, "settings": asdict(model) | paths, **content}
        evaluate_in_child(MODULE, request, output / f"{name}.json", table, output_format)
    return EXIT_OK


def _blimp_table(report: Mapping[str, Any]) -> str:
    rows = [["phenomenon", "accuracy"]]
    rows += [[name, score_text(share)] for name, share in report["phenomena"].items()]
    rows.append([f"mean of {counted(len(report['paradigms']), 'paradigm')}", score_text(report["accuracy"])])
    pairs, ties = counted(report["pairs"], "pair"), counted(report["ties"], "tie")
    return "\n".join([columns(rows), f"{pairs}, {ties} (scored as wrong)", *_notes(report)])


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    for reason in report["not_comparable"]:
        yield f"not comparable with published scores: {reason}"
    if report["truncated"]:
        yield f"{counted(report['truncated'], 'sentence')} truncated"


def _perplexity_table(report: Mapping[str, Any]) -> str:
    names = {
        "pseudo-perplexity of tokens": "pseudo_perplexity",
        "perplexity of tokens": "perplexity",
        "perplexity of bytes": "byte_perplexity",
        "bits per byte": "bits_per_byte",
        "mean of documents": "mean_of_documents",
        "median of documents": "median_of_documents",
    }
    rows = [[label, _shown(report[name])] for label, name in names.items() if name in report]
    counts = f"{counted(report['documents'], 'document')}, {counted(report['tokens'], 'token')}"
    cut = f"; {counted(report['truncated'], 'document')} truncated" if report["truncated"] else ""
    return f"{columns(rows)}\n{counts}{cut}\nsource: {printable(report['source'])}"


def _shown(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"
