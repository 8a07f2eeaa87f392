"""Specification of the token-classification task: head, labels and metrics. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.plurals import listed
from neobert.tasks.metric import Metric
from neobert.tasks.spec import Contradiction, Head, LabelSpec, TaskSpec, label_settings
from neobert.tasks.token_classification.rows import LABEL_SETTING, row_format
from neobert.tasks.token_classification.section import OF_ENTITIES, TOKEN_CLASSIFICATION

NAMES_SETTING = "token_classification.label_names"
OUTSIDE = "O"
PREFIXES = ("B-", "I-", "E-", "S-")


def is_entity_tag(name: str) -> bool:
    """Return whether a label is an entity tag: B-, I-, E- or S-, followed by a type."""
    return name.startswith(PREFIXES) and len(name) > 2


def tags_entities(names: Iterable[str]) -> bool:
    """Return whether labels are entity tags (BIO, BIOES), for which entity metrics are reported too."""
    marks = [name for name in names if name != OUTSIDE]
    return bool(marks) and all(map(is_entity_tag, marks))


def classifier_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: one linear layer, applied to every token."""
    hidden, labels = shape.hidden_size, len(TOKEN_CLASSIFICATION.read_section(config).label_names)
    return Head(
        parameters=labels * (hidden + 1),
        weights=hidden * labels,
        width=labels,
        scored_share=1.0,
        scored_positions="tokens",
    )


def describe_labels(config: RunConfig) -> LabelSpec:
    """Describe the labels of the data: the class names."""
    return LabelSpec(
        "word", LABEL_SETTING, NAMES_SETTING, TOKEN_CLASSIFICATION.read_section(config).label_names
    )


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the classifier."""
    section = TOKEN_CLASSIFICATION.read_section(config)
    settings = {"classifier_dropout": section.dropout, "num_labels": len(section.label_names)}
    return settings | label_settings(section.label_names)


def contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """Yield contradictions of label_names: too few, repeated, or entity tags mixed with other labels."""
    names, key = TOKEN_CLASSIFICATION.read_section(config).label_names, NAMES_SETTING
    repeated = [name for name, count in Counter(names).items() if count > 1]
    marks = [name for name in names if is_entity_tag(name)]
    plain = [name for name in names if name != OUTSIDE and not is_entity_tag(name)]
    if len(names) < 2:
        problem = f"label_names has {len(names)} names (at least 2)"
        yield Contradiction(key, problem, f"set {key} to all labels of the data, such as [O, B-PER, I-PER]")
    elif repeated:
        problem = f"label_names has {listed(repeated)} more than once"
        yield Contradiction(key, problem, f"list each name once in {key}")
    elif marks and plain:
        problem = f"label_names mixes entity tags ({listed(marks)}) and other labels ({listed(plain)})"
        hint = f"add a prefix B-, I-, E- or S- to each name except {OUTSIDE} in {key}"
        yield Contradiction(key, problem, hint)


def reports(config: RunConfig, metric: Metric) -> bool:
    """Return whether a run reports a metric; entity metrics need entity tags."""
    return metric not in OF_ENTITIES or tags_entities(TOKEN_CLASSIFICATION.read_section(config).label_names)


SPEC = TaskSpec(
    keys=TOKEN_CLASSIFICATION,
    summary="classification of words: named entities, parts of speech",
    auto_class="AutoModelForTokenClassification",
    predicts="labels",
    head=classifier_head,
    model_settings=model_settings,
    rows=row_format,
    labels=describe_labels,
    contradictions=contradictions,
    reports=reports,
)
