"""Classification and regression of texts and pairs of texts, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import TEXT_SETTING
from neobert.families.shape import ModelShape
from neobert.printable import printable
from neobert.tasks.classification.rows import (
    LABEL_SETTING,
    PAIR_SETTING,
    is_regression,
    num_labels,
    row_format,
)
from neobert.tasks.classification.section import CLASSIFICATION, OF_CLASSES, ClassificationConfig
from neobert.tasks.metric import CORRELATIONS, LOSS, Metric
from neobert.tasks.spec import Contradiction, Head, LabelSpec, TaskSpec, label_settings


def classifier_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: a dense layer and the classifier, applied once per text."""
    hidden, labels = shape.hidden_size, num_labels(config)
    return Head(
        parameters=hidden * (hidden + 1) + labels * (hidden + 1),
        weights=hidden * (hidden + labels),
        width=labels,
        scored_share=1.0,
        is_per_document=True,
    )


def describe_labels(config: RunConfig) -> LabelSpec:
    """Describe the labels of the data: names or numbers of the classes, or no classes for scores."""
    names = CLASSIFICATION.read_section(config).label_names
    numbers = range(0 if is_regression(config) else num_labels(config))
    return LabelSpec(
        unit="text",
        column="classification.label_column",
        setting=f"classification.{'label_names' if names else 'num_labels'}",
        classes=names or tuple(map(str, numbers)),
    )


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Return dropout, number of labels and problem type; pooling and class names if they are set."""
    section, is_number = CLASSIFICATION.read_section(config), is_regression(config)
    settings: dict[str, Any] = {
        "classifier_dropout": section.dropout,
        "num_labels": num_labels(config),
        "problem_type": "regression" if is_number else "single_label_classification",
    }
    if section.pooling is not None:
        settings["pooling"] = section.pooling
    if section.label_names and not is_number:
        settings |= label_settings(section.label_names)
    return settings


def contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """Yield contradictions between label_names, num_labels and problem, and columns with two roles."""
    section = CLASSIFICATION.read_section(config)
    names, names_key = section.label_names, "classification.label_names"
    if section.problem == "regression":
        if names:
            problem = "label_names is set, but problem is regression"
            yield Contradiction(names_key, problem, "set classification.label_names to null")
    elif names is not None and len(set(names)) < max(2, len(names)):
        problem = f"label_names has {len(names)} names, of which {len(set(names))} are different"
        yield Contradiction(names_key, problem, f"list at least two names in {names_key}, each once")
    elif names is None and section.num_labels < 2:
        hint = "set classification.num_labels to 2 or more, or classification.problem to regression"
        problem = f"num_labels is {section.num_labels} (at least 2)"
        yield Contradiction("classification.num_labels", problem, hint)
    elif names and section.num_labels not in (len(names), ClassificationConfig().num_labels):
        problem = f"num_labels is {section.num_labels}, but label_names has {len(names)} names"
        yield Contradiction("classification.num_labels", problem, "remove classification.num_labels")
    yield from _columns_with_two_roles(config)


def _columns_with_two_roles(config: RunConfig) -> Iterator[Contradiction]:
    section, roles = CLASSIFICATION.read_section(config), dict[str, str]()
    named = {
        TEXT_SETTING: config.dataset.text_column,
        PAIR_SETTING: section.pair_column,
        LABEL_SETTING: section.label_column,
    }
    for key, column in named.items():
        if column is not None and column in roles:
            problem = f"{key} and {roles[column]} are both {printable(column)}"
            yield Contradiction(key, problem, f"set {key} to another column")
        elif column is not None:
            roles[column] = key


def reports(config: RunConfig, metric: Metric) -> bool:
    """Return whether a run reports a metric: the loss, and metrics of classes or of scores."""
    return metric is LOSS or metric in (CORRELATIONS if is_regression(config) else OF_CLASSES)


SPEC = TaskSpec(
    keys=CLASSIFICATION,
    summary="classification or regression of texts and pairs of texts",
    auto_class="AutoModelForSequenceClassification",
    predicts="labels",
    head=classifier_head,
    model_settings=model_settings,
    rows=row_format,
    labels=describe_labels,
    labels_texts=True,
    contradictions=contradictions,
    reports=reports,
)
