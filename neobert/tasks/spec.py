"""Description of a task for plan, rules and reports. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import RowFormat
from neobert.families.shape import ModelShape
from neobert.metric_names import EVAL, EVAL_LOSS

DECIMALS = ((10.0, 4), (100.0, 2))
"""Decimals of a value below each limit, such as a loss or a perplexity; a larger one has a single decimal."""

MASKING_KEYS = (
    *(f"datacollator.mlm_probability{suffix}" for suffix in ("", "_final", "_over", "_eval")),
    "datacollator.mask_all",
    "trainer.masked_logits_only_loss",
)
"""Keys that only a task with masked tokens reads."""

PIECE_KEYS = (
    "trainer.sequence_length_warmup_steps",
    "trainer.sequence_length_warmup_percent",
    "trainer.sequence_length_warmup_length",
)


NO_MASKS = dict.fromkeys(MASKING_KEYS, "no token is masked")
UNREAD: Mapping[str, Mapping[str, str]] = {
    "masked": {},
    "next": NO_MASKS,
    "labels": {
        **NO_MASKS,
        "trainer.z_loss": "its loss does not use vocabulary logits",
        **dict.fromkeys(PIECE_KEYS, "labelled texts are not cut"),
        "trainer.cuda_graphs": "the shapes of its rows vary",
        "dataset.min_length": "labelled texts of any length are kept",
        "dataset.document_per_line": "labelled texts are rows of a table",
    },
    "pairs": NO_MASKS,
}
"""Keys of shared sections that a task does not read, with the reason, by what it predicts."""


def label_settings(names: tuple[str, ...]) -> dict[str, Any]:
    """Return `id2label` and `label2id` for a model's config."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}


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
"""Metrics of several tasks."""


class Head(NamedTuple):
    """Size and FLOPs of the head, which runs after the encoder.

    Attributes:
        parameters: parameters of the head, without those shared with the encoder.
        weights: weights that are multiplied per scored position; 6 FLOPs each, forward and backward.
        width: logits per scored position.
        scored_share: scored positions per token, or per document, in (0, 1].
        is_per_document: whether documents are scored, and not tokens.
        scored_positions: description of the scored positions, for reports.
    """

    parameters: int
    weights: int
    width: int
    scored_share: float
    is_per_document: bool = False
    scored_positions: str = "predicted positions"

    def scored(self, num_tokens: float, document_tokens: float) -> float:
        """Return the expected number of scored positions in `num_tokens` tokens.

        `document_tokens` is the mean document length.
        """
        return self.scored_share * (num_tokens / document_tokens if self.is_per_document else num_tokens)


class Labels(NamedTuple):
    """Labels that the data contains.

    Attributes:
        unit: unit with a label: text or word.
        column: config key that names the column of the labels.
        setting: config key that lists the classes, or sets their number.
        classes: names of the classes in the label counts of prepared data; empty for scores.
    """

    unit: str
    column: str
    setting: str
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Description of a task for plan, rules and reports.

    Attributes:
        name: value of the key `task`.
        summary: one line for reports.
        module: dotted name of the module with the function `build`, see `neobert.tasks.build`.
        examples: dotted name of the data layer with `build_examples`, see `neobert.data.examples`.
        auto_class: the transformers class that loads checkpoints of the task.
        predicts: targets of the loss: masked tokens, next tokens, labels of the data, or pairs of texts.
        metrics: metrics that an evaluation may report; `reports` selects from them.
        labels: returns the labels of the data for a config; None: targets are created from the text.
        labels_texts: a label belongs to a whole text, which is never split.
        rows: returns the fields of a row for a config.
        head: returns size and FLOPs of the head for a config and the shape of the model.
        model_settings: returns the settings of the head, as arguments of transformers' configurations.
        own_sections: config sections that are read only by tasks that list them here; setting one in a run
            file of another task is an error.
        reports: returns whether a run with this config reports a metric.
    """

    name: str
    summary: str
    module: str
    examples: str
    auto_class: str
    predicts: Literal["masked", "next", "labels", "pairs"]
    metrics: tuple[Metric, ...]
    head: Callable[[RunConfig, ModelShape], Head]
    rows: Callable[[RunConfig], RowFormat]
    labels: Callable[[RunConfig], Labels] | None = None
    labels_texts: bool = False
    own_sections: frozenset[str] = frozenset()
    model_settings: Callable[[RunConfig], Mapping[str, Any]] = lambda _config: {}
    reports: Callable[[RunConfig, Metric], bool] = lambda _config, _metric: True

    @property
    def unread(self) -> Mapping[str, str]:
        """Return the keys of shared sections that the task does not read, with the reason."""
        return UNREAD[self.predicts]

    @property
    def reads_text(self) -> bool:
        """Return whether the targets are tokens of the text, which needs no labels."""
        return self.predicts in ("masked", "next")

    @property
    def labels_tokens(self) -> bool:
        """Return whether tokens have labels, and not texts."""
        return self.predicts != "pairs" and not self.labels_texts
