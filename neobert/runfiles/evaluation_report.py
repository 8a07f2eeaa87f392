"""Summary of scores in the report of `evaluate`, which model cards show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SUMMARY, WEIGHTS = "summary", "weights"
"""Keys of a report: summary of scores, and digest of the evaluated weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigure:
    """Score of a task.

    Attributes:
        name: name of the task or data.
        metric: name of the metric.
        value: the score; None if the evaluation is not finished or the score is not finite.
        std: sample standard deviation over the seeds.
        seeds: number of seeds.
        starts_from: weights that fine-tuning started from.
        is_share: whether the score is shown in percent.
    """

    name: str
    metric: str
    value: float | None
    std: float | None = None
    seeds: int | None = None
    starts_from: str | None = None
    is_share: bool = True


def summary_json(title: str, figures: Sequence[ReportFigure], notes: Sequence[str]) -> dict[str, Any]:
    """Return the summary of a report as JSON values; `notes` are remarks on the scores."""
    return {"title": title, "figures": [asdict(figure) for figure in figures], "notes": list(notes)}


def format_score(value: float | None, std: float | None = None, *, is_share: bool = True) -> str:
    """Format a score and its deviation: `81.2 ± 0.4` in percent if `is_share`, else `12.34`; `-` for None."""
    if value is None:
        return "-"
    scale, digits = (100, 1) if is_share else (1, 2)
    spread = "" if std is None else f" ± {scale * std:,.{digits}f}"
    return f"{scale * value:,.{digits}f}{spread}"
