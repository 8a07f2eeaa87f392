"""Specification of the token-classification task: head, labels and metrics. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.tasks.spec import (
    ACCURACY,
    LOSS,
    Head,
    Labels,
    Metric,
    TaskSpec,
    label_settings,
)
from neobert.tasks.token_classification.rows import rows_of

OUTSIDE = "O"
PREFIXES = ("B-", "I-", "E-", "S-")
OF_ENTITIES = (
    Metric("eval/precision", is_higher_better=True, is_share=True),
    Metric("eval/recall", is_higher_better=True, is_share=True),
    Metric("eval/f1", is_higher_better=True),
)


def is_entity_tag(name: str) -> bool:
    """Return whether a label is an entity tag: B-, I-, E- or S-, followed by a type."""
    return name.startswith(PREFIXES) and len(name) > 2


def tags_entities(names: Iterable[str]) -> bool:
    """Return whether labels are entity tags (BIO, BIOES), for which entity metrics are reported too."""
    marks = [name for name in names if name != OUTSIDE]
    return bool(marks) and all(map(is_entity_tag, marks))


def classifier(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: one linear layer, applied to every token."""
    hidden, labels = shape.hidden_size, len(config.token_classification.label_names)
    return Head(
        parameters=labels * (hidden + 1),
        weights=hidden * labels,
        width=labels,
        scored_share=1.0,
        scored_positions="tokens",
    )


def labels_of(config: RunConfig) -> Labels:
    """Describe the labels of the data: the class names."""
    section = "token_classification"
    names = config.token_classification.label_names
    return Labels("word", f"{section}.label_column", f"{section}.label_names", names)


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the classifier."""
    section = config.token_classification
    settings = {"classifier_dropout": section.dropout, "num_labels": len(section.label_names)}
    return settings | label_settings(section.label_names)


def reports(config: RunConfig, metric: Metric) -> bool:
    """Return whether a run reports a metric; entity metrics need entity tags."""
    return metric not in OF_ENTITIES or tags_entities(config.token_classification.label_names)


TOKEN_CLASSIFICATION = TaskSpec(
    name="token_classification",
    summary="classification of words: named entities, parts of speech",
    module="neobert.tasks.token_classification.task",
    examples="neobert.tasks.token_classification.examples",
    auto_class="AutoModelForTokenClassification",
    predicts="labels",
    metrics=(LOSS, ACCURACY, *OF_ENTITIES),
    head=classifier,
    model_settings=model_settings,
    rows=rows_of,
    labels=labels_of,
    own_sections=frozenset({"token_classification", "adapter"}),
    reports=reports,
)
