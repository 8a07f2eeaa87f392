"""Metrics that evaluations report: name, direction and format."""

from __future__ import annotations

from dataclasses import dataclass

from neobert.metric_names import EVAL, EVAL_LOSS

DECIMALS = ((10.0, 4), (100.0, 2))
"""Decimals of a value below each limit, such as a loss or a perplexity; a larger one has a single decimal."""


@dataclass(frozen=True, slots=True)
class Metric:
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
        """Format a value: 81.20% for a share, else 0.5123 or 1,234.5."""
        if self.is_share:
            return f"{value:.2%}"
        decimals = next((number for limit, number in DECIMALS if abs(value) < limit), 1)
        return f"{value:,.{decimals}f}"

    def describe(self, value: float) -> str:
        """Format a value with its label."""
        return f"{self.label} {self.show(value)}"


LOSS = Metric(EVAL_LOSS, is_higher_better=False)
ACCURACY = Metric("eval/accuracy", is_higher_better=True, is_share=True)
PERPLEXITY = Metric("eval/perplexity", is_higher_better=False)
"""Metrics of several tasks."""
