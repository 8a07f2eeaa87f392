"""Classification and regression of texts and pairs of texts, without torch."""

from __future__ import annotations

from typing import Any

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.tasks.classification.rows import is_regression, num_labels, rows_of
from neobert.tasks.spec import (
    ACCURACY,
    LOSS,
    Head,
    Labels,
    Metric,
    TaskSpec,
    label_settings,
)

OF_CLASSES = (
    ACCURACY,
    Metric("eval/f1", is_higher_better=True),
    Metric("eval/mcc", is_higher_better=True),
)
OF_SCORES = (Metric("eval/pearson", is_higher_better=True), Metric("eval/spearman", is_higher_better=True))


def classifier(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: a dense layer and the classifier, applied once per text."""
    hidden, labels = shape.hidden_size, num_labels(config)
    return Head(
        parameters=hidden * (hidden + 1) + labels * (hidden + 1),
        weights=hidden * (hidden + labels),
        width=labels,
        scored_share=1.0,
        is_per_document=True,
    )


def labels_of(config: RunConfig) -> Labels:
    """Describe the labels of the data: names or numbers of the classes, or no classes for scores."""
    names = config.classification.label_names
    numbers = range(0 if is_regression(config) else num_labels(config))
    return Labels(
        unit="text",
        column="classification.label_column",
        setting=f"classification.{'label_names' if names else 'num_labels'}",
        classes=names or tuple(map(str, numbers)),
    )


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the classifier."""
    section, is_number = config.classification, is_regression(config)
    settings: dict[str, Any] = {
        "pooling": section.pooling,
        "classifier_dropout": section.dropout,
        "num_labels": num_labels(config),
        "problem_type": "regression" if is_number else "single_label_classification",
    }
    if section.label_names and not is_number:
        settings |= label_settings(section.label_names)
    return settings


def reports(config: RunConfig, metric: Metric) -> bool:
    """Return whether a run reports a metric; classification and regression have different metrics."""
    return metric is LOSS or metric in (OF_SCORES if is_regression(config) else OF_CLASSES)


CLASSIFICATION = TaskSpec(
    name="classification",
    summary="classification or regression of texts and pairs of texts",
    module="neobert.tasks.classification.task",
    examples="neobert.tasks.classification.examples",
    auto_class="AutoModelForSequenceClassification",
    predicts="labels",
    metrics=(LOSS, *OF_CLASSES, *OF_SCORES),
    head=classifier,
    model_settings=model_settings,
    rows=rows_of,
    labels=labels_of,
    labels_texts=True,
    own_sections=frozenset({"classification", "adapter"}),
    reports=reports,
)
