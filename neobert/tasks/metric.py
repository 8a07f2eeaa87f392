"""Metrics that evaluations report: name, direction and format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from neobert.metric_names import EVAL, EVAL_LOSS

DECIMALS = ((10.0, 4), (100.0, 2))
"""Pairs of a limit and the number of decimals of a value below it; larger values have one decimal."""
SMALL = 1e-3
"""Values below this have significant digits instead: with four decimals, a loss of 4e-05 would be 0.0000."""


def show_number(value: float) -> str:
    """Format a number that is not a share: 0.5123, 1,234.5, 0.00043 or 4.3e-05."""
    if 0 < abs(value) < SMALL:
        return f"{value:.2g}"
    decimals = next((number for limit, number in DECIMALS if abs(value) < limit), 1)
    return f"{value:,.{decimals}f}"


class Metric(NamedTuple):
    """A number that an evaluation writes to `metrics.jsonl`.

    Attributes:
        name: key in the file, such as eval/accuracy.
        is_higher_better: direction for the selection of the best checkpoint and for early stopping.
        is_share: shown in percent.
        note_on_early_best: why a value of the first steps may be the best; shown in reports if it is.
    """

    name: str
    is_higher_better: bool
    is_share: bool = False
    note_on_early_best: str = ""

    @property
    def label(self) -> str:
        """Name in reports, without the prefix `eval/`."""
        return self.name.removeprefix(EVAL)

    def show(self, value: float) -> str:
        """Format a value: 81.20% for a share, else as `show_number` does."""
        return f"{value:.2%}" if self.is_share else show_number(value)

    def describe(self, value: float) -> str:
        """Format a value with its label."""
        return f"{self.label} {self.show(value)}"


def best_step(
    evaluations: Mapping[int, Mapping[str, float]], name: str, *, is_higher_better: bool
) -> int | None:
    """Return the step of the best evaluation by a metric, or None if no value is finite.

    Ties go to the lower loss, since a small evaluation set soon has perfect accuracy; then to the earliest.
    """
    sign = -1 if is_higher_better else 1
    ranks = {
        step: (sign * value, values.get(EVAL_LOSS, math.inf), step)
        for step, values in evaluations.items()
        if math.isfinite(value := values.get(name, math.nan))
    }
    return min(ranks, key=ranks.__getitem__, default=None)


LOSS = Metric(EVAL_LOSS, is_higher_better=False)
ACCURACY = Metric("eval/accuracy", is_higher_better=True, is_share=True)
PERPLEXITY = Metric("eval/perplexity", is_higher_better=False)
CORRELATIONS = (
    Metric("eval/pearson", is_higher_better=True),
    Metric("eval/spearman", is_higher_better=True),
)
"""Correlations between predicted scores and labels, for all tasks with scores."""

RANGES = (0, 2**10, 2**12, 2**13, 2**14)
"""Start positions of the ranges of a document over which token loss is reported."""
_ENDS = (*(f"{start // 2**10}k" for start in RANGES[1:]), "end")
LOSSES_BY_POSITION = tuple(
    Metric(f"{EVAL_LOSS}_{start // 2**10}k_{end}", is_higher_better=False)
    for start, end in zip(RANGES, _ENDS, strict=True)
)
"""Loss in each range: eval/loss_0k_1k, eval/loss_1k_4k, and so on to eval/loss_16k_end."""
TOKEN_METRICS = (LOSS, ACCURACY, PERPLEXITY, *LOSSES_BY_POSITION)


def is_reported_at_length(metric: Metric, row_length: int) -> bool:
    """Return whether rows of `row_length` tokens are long enough for a metric of `TOKEN_METRICS`."""
    if metric not in LOSSES_BY_POSITION:
        return True
    return row_length > max(RANGES[1], RANGES[LOSSES_BY_POSITION.index(metric)])
