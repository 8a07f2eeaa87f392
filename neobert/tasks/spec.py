"""Description of a task for plan, rules and reports. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import RowFormat
from neobert.families.hf.architecture import BARE, VOCABULARY_HEADS, HeadPath
from neobert.families.shape import ModelShape
from neobert.precision.libraries import LIBRARIES
from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import Metric, is_reported_at_length

MASKING_KEYS = (
    "datacollator.mlm_probability",
    "datacollator.mlm_probability_eval",
    "datacollator.mask_all",
)
"""Keys that only a task with masked tokens reads."""

PIECE_KEYS = (
    "trainer.sequence_length_warmup_steps",
    "trainer.sequence_length_warmup_percent",
    "trainer.sequence_length_warmup_length",
)

NO_MASKS = dict.fromkeys((*MASKING_KEYS, "trainer.masked_logits_only_loss"), "no token is masked")
NO_CHAT = {"tokenizer.chat_template": "its texts are not conversations"}
NO_LOGITS = {"trainer.z_loss": "its loss does not use vocabulary logits"}
UNREAD: Mapping[str, Mapping[str, str]] = {
    "masked": NO_CHAT,
    "next": NO_MASKS,
    "labels": {
        **NO_CHAT,
        **NO_MASKS,
        **NO_LOGITS,
        **dict.fromkeys(PIECE_KEYS, "labelled texts are not cut"),
        "trainer.cuda_graphs": "the shapes of its rows vary",
        "dataset.min_length": "labelled texts of any length are kept",
        "dataset.document_per_line": "labelled texts are rows of a table",
    },
    "pairs": {
        **NO_CHAT,
        **NO_MASKS,
        **NO_LOGITS,
        **dict.fromkeys(PIECE_KEYS, "texts of pairs are not cut"),
        "trainer.cuda_graphs": "the shapes of its rows vary",
        "dataset.min_length": "texts of pairs of any length are kept",
        "dataset.document_per_line": "texts of pairs are rows of a table",
    },
}
"""Keys of shared sections that a task does not read, with the reason, by what it predicts."""
ADAPTER = frozenset({"adapter"})
"""Shared section that only tasks with labels or next tokens read, which start from trained weights."""
LOW_PRECISION = frozenset(LIBRARIES)
"""Shared sections of low precision, which only pretraining reads."""


def label_settings(names: tuple[str, ...]) -> dict[str, Any]:
    """Return `id2label` and `label2id` for a model's config."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}


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

    def num_scored(self, num_tokens: float, document_tokens: float) -> float:
        """Return the expected number of scored positions in `num_tokens` tokens.

        `document_tokens` is the mean document length.
        """
        return self.scored_share * (num_tokens / document_tokens if self.is_per_document else num_tokens)


def reports_token_metric(config: RunConfig, metric: Metric) -> bool:
    """Return whether a token task reports a metric; losses by position need rows that are long enough."""
    return is_reported_at_length(metric, config.datacollator.max_length or config.dataset.max_seq_length)


def next_token_head(_config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of a head of next tokens: vocabulary logits of every token."""
    return Head(shape.parameters.decoder, shape.decoder_products, shape.vocab_size, 1.0)


class LabelSpec(NamedTuple):
    """Labels that a task reads from its data.

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


class Card(NamedTuple):
    """Parts of the model card of a NeoBERT with the head of the task.

    Attributes:
        tag: tag of the task on the Hub.
        purpose: text after the name of the model.
        metrics: names of the metrics on the Hub.
        usage: how to load and call the model.
    """

    tag: str
    purpose: str
    metrics: str
    usage: str


class Contradiction(NamedTuple):
    """A key of the task that contradicts another one, with the problem and the edit that solves it."""

    key: str
    problem: str
    hint: str


class Passes(NamedTuple):
    """Passes over the tokens of a step, for its FLOPs and its time.

    Attributes:
        trained: forward and backward passes.
        repeated: recomputed forward passes, which take time but add no useful FLOPs.
    """

    trained: int = 1
    repeated: int = 0


class PlanRow(NamedTuple):
    """A setting of the task that `plan` shows, with the keys that it comes from."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TaskSpec:
    """Description of a task for plan, rules and reports.

    Attributes:
        keys: name of the task, its section and its metrics; `reports` selects from the metrics.
        summary: one line for reports.
        auto_class: the transformers class that loads checkpoints of the task; AutoModel has no head.
        predicts: targets of the loss: masked tokens, next tokens, labels of the data, or pairs of texts.
        by_config: returns the fields of this description that the keys of a run change, see `spec_of`.
        roles: special tokens that the task needs of a tokenizer, such as mask_token.
        also_reads: keys of `UNREAD` that this task reads nevertheless.
        mix_key: key that weights an added masked-LM loss, which needs the head; empty: no loss is added.
        passes: returns the passes over the tokens of a step.
        labels: returns the labels of the data for a config; None: targets are created from the text.
        labels_texts: a label belongs to a whole text, which is never split.
        stores_targets: the prepared text marks its targets: only its preparation tells whether it has any.
        texts: returns the maximum number of texts in an example, each a segment (`GROUP` of the encoder).
        rows: returns the fields of a row for a config.
        head: returns size and FLOPs of the head for a config and the shape of the model.
        corpus_weight: returns the weight of a corpus in a mixture, from its entry's weight and its size.
        declared_keys: returns the config keys, with their values, that a folder of weights declares.
        differing_keys: returns the config keys that differ from what a folder declares, with its values.
        model_settings: returns the settings of the head, as arguments of transformers' configurations.
        contradictions: yields contradictory settings of the task's section.
        plan_rows: yields the settings of the task that `plan` shows.
        evaluation_table: returns path and row format of a table that evaluations read too, or None.
        has_one_loss: returns whether every step has the same loss function, so that an outlier is a spike.
        reports: returns whether a run with this config reports a metric.
        heads: heads of transformers architectures that `auto_class` alone would not load, by name.
        temperature: returns the temperature of a loss that compares pairs.
        score_key: returns the key that names the scores of pairs; empty: none are trained on.
        predicted: columns that a prediction adds to its row, besides one per class.
        card: model card of a NeoBERT with the head; None: the card in `neobert.export.card`.
    """

    keys: TaskKeys[Any]
    summary: str
    auto_class: str
    predicts: Literal["masked", "next", "labels", "pairs"]
    head: Callable[[RunConfig, ModelShape], Head]
    rows: Callable[[RunConfig], RowFormat]
    by_config: Callable[[RunConfig], Mapping[str, Any]] = lambda _config: {}
    roles: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = ()
    mix_key: str = ""
    passes: Callable[[RunConfig], Passes] = lambda _config: Passes()
    labels: Callable[[RunConfig], LabelSpec] | None = None
    labels_texts: bool = False
    stores_targets: bool = False
    texts: Callable[[RunConfig], int] = lambda _config: 1
    corpus_weight: Callable[[RunConfig, float, int], float] = lambda _config, weight, _examples: weight
    declared_keys: Callable[[Path], Mapping[str, Any]] = lambda _folder: {}
    differing_keys: Callable[[RunConfig, Path], Mapping[str, str]] = lambda _config, _folder: {}
    model_settings: Callable[[RunConfig], Mapping[str, Any]] = lambda _config: {}
    contradictions: Callable[[RunConfig], Iterable[Contradiction]] = lambda _config: ()
    plan_rows: Callable[[RunConfig], Iterable[PlanRow]] = lambda _config: ()
    evaluation_table: Callable[[RunConfig], tuple[str, RowFormat] | None] = lambda _config: None
    has_one_loss: Callable[[RunConfig], bool] = lambda _config: True
    reports: Callable[[RunConfig, Metric], bool] = lambda _config, _metric: True
    heads: Mapping[str, HeadPath] = field(default_factory=dict)
    temperature: Callable[[RunConfig], float] = lambda _config: 1.0
    score_key: Callable[[RunConfig], str] = lambda _config: ""
    predicted: tuple[str, ...] = ("prediction", "probability")
    card: Card | None = None

    @property
    def name(self) -> str:
        """Return the value of the key `task`."""
        return self.keys.name

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics that an evaluation may report."""
        return self.keys.metrics

    @property
    def unread_keys(self) -> Mapping[str, str]:
        """Return the keys of shared sections that the task does not read, with the reason."""
        unread = UNREAD[self.predicts]
        return {key: reason for key, reason in unread.items() if key not in self.also_reads}

    @property
    def unread_sections(self) -> frozenset[str]:
        """Return the shared sections that the task does not read."""
        pretrains = self.is_self_supervised and not self.stores_targets
        has_adapter = self.predicts in ("labels", "next")
        return (frozenset() if has_adapter else ADAPTER) | (frozenset() if pretrains else LOW_PRECISION)

    @property
    def masks_tokens(self) -> bool:
        """Return whether tokens are masked, also next to another loss."""
        return self.predicts == "masked" or bool(self.mix_key)

    @property
    def is_self_supervised(self) -> bool:
        """Return whether the targets are tokens of the text itself, so that no labels are needed."""
        return self.predicts in ("masked", "next")

    @property
    def reads_table(self) -> bool:
        """Return whether the data is a table whose columns `infer` finds, instead of plain texts."""
        return self.labels is not None or self.stores_targets or self.predicts == "pairs"

    @property
    def keeps_texts_whole(self) -> bool:
        """Return whether texts are not split: each has one label, or one vector."""
        return self.labels_texts or self.predicts == "pairs"

    @property
    def has_head(self) -> bool:
        """Return whether the model has a head; else the loss is computed from hidden states."""
        return self.auto_class != BARE

    @property
    def has_word_head(self) -> bool:
        """Return whether the model has a head over the vocabulary, which its weights must have, too."""
        return self.auto_class in VOCABULARY_HEADS

    @property
    def labels_tokens(self) -> bool:
        """Return whether labels are per token instead of per text."""
        return self.predicts != "pairs" and not self.labels_texts
