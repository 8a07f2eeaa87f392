"""Sections of a model card with results: the run's own evaluation, and reports of `evaluate`.

Reports are untrusted input: their texts are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.export.markdown import escape_markdown
from neobert.printable import printable
from neobert.runfiles.evaluation_report import SUMMARY, WEIGHTS, ReportFigure, format_score
from neobert.runfiles.typed_json import parse_as
from neobert.tasks.specs import known_metrics

CARD = "README.md"
CODE = "export-results"
MAX_ROWS = 500
COLUMNS = ("task", "metric", "score", "seeds", "starts from")
OWN_NOTE = "One run with one seed: losses on other texts or with another tokenizer are not comparable."


def training_section(sources: Sequence[Mapping[str, Any]]) -> str:
    """Return the section on the checkpoints that were exported, with their evaluation during training.

    Returns an empty text if no source is a checkpoint of this project.

    Args:
        sources: step, tokens_total and metrics of each checkpoint; of several, the mean is exported.
    """
    steps = [source["step"] for source in sources if source.get("step") is not None]
    if not steps:
        return ""
    if len(sources) > 1:
        listed = ", ".join(f"{step:,}" for step in steps)
        return (
            f"## Training\n\nMean of the checkpoints of steps {listed}. The run did not evaluate the mean.\n"
        )
    source, metrics = sources[0], known_metrics()
    tokens = f", {source['tokens_total']:,} tokens" if source.get("tokens_total") else ""
    reached = f"## Training\n\nStep {steps[0]:,} of the run{tokens}."
    found = {name: value for name, value in (source.get("metrics") or {}).items() if name in metrics}
    if not found:
        return f"{reached} The run did not evaluate these weights.\n"
    rows = [
        ("evaluation", "value"),
        *(_metric_row(metrics[name].describe(value)) for name, value in found.items()),
    ]
    return f"{reached}\n\n{_markdown_table(rows)}\n\n{OWN_NOTE}\n"


def _metric_row(described: str) -> tuple[str, str]:
    label, _, value = described.rpartition(" ")
    return label, value


def read_reports(files: Sequence[Path], weights: str) -> list[dict[str, Any]]:
    """Return the summaries of `neobert-launch evaluate` reports.

    Raises `ProjectError` for a file that is not such a report, or that is about other weights.

    Args:
        weights: SHA-256 of the exported weights, as in the reports.
    """
    return [_read_report(file, weights) for file in files]


def _read_report(file: Path, weights: str) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        summary = {**report[SUMMARY], "figures": parse_as(list[ReportFigure], report[SUMMARY]["figures"])}
        evaluated, _ = report[WEIGHTS], (summary["title"], *summary["notes"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"missing key {error}" if isinstance(error, KeyError) else printable(str(error))
        message = f"the file is not a report of `neobert-launch evaluate`: {reason}"
        hint = "pass a JSON file that `neobert-launch evaluate` wrote"
        raise ProjectError(CODE, message, hint, str(file), EXIT_USAGE) from None
    if evaluated != weights:
        message = "the report is about weights other than the exported weights"
        hint = "evaluate this checkpoint; for a mean, export it, evaluate that folder, then export again"
        raise ProjectError(CODE, message, hint, str(file), EXIT_USAGE)
    return summary


def evaluation_section(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the section with the results in summaries of reports; an empty text if there are none."""
    parts = [_render_summary(summary) for summary in summaries]
    return "\n".join(["## Evaluation\n", *parts]) if parts else ""


def _render_summary(summary: Mapping[str, Any]) -> str:
    figures: list[ReportFigure] = summary["figures"]
    rows = [COLUMNS, *(_figure_row(figure) for figure in figures[:MAX_ROWS])]
    kept = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows[1:])]
    table = _markdown_table([tuple(row[number] for number in kept) for row in rows])
    left_out = len(figures) - MAX_ROWS
    notes = [str(note) for note in summary["notes"]] + (
        [f"{left_out:,} more figures are in the report"] if left_out > 0 else []
    )
    listed = "".join(f"- {escape_markdown(note)}\n" for note in notes)
    return f"### {escape_markdown(summary['title'])}\n\n{table}\n" + (f"\n{listed}" if listed else "")


def _figure_row(figure: ReportFigure) -> tuple[str, ...]:
    score = format_score(figure.value, figure.std, is_share=figure.is_share)
    seeds = "" if figure.seeds is None else str(figure.seeds)
    texts = (figure.name, figure.metric, score, seeds, figure.starts_from or "")
    return tuple(map(escape_markdown, texts))


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def add_sections(folder: Path, *sections: str) -> None:
    """Append sections to the model card of a folder; a folder without a card is unchanged."""
    card = folder / CARD
    if card.is_file():
        text = "\n".join([card.read_text(encoding="utf-8"), *(section for section in sections if section)])
        card.write_text(text, encoding="utf-8")
