"""Predicates on tasks, which decide whether a rule applies."""

from __future__ import annotations

from neobert.tasks.spec import TaskSpec


def masks_tokens(spec: TaskSpec) -> bool:
    """Return whether the task masks tokens, alone or in addition to another loss."""
    return spec.masks_tokens


def predicts_text_tokens(spec: TaskSpec) -> bool:
    """Return whether the task predicts tokens of plain documents, not of conversations."""
    return spec.is_self_supervised and not spec.stores_targets


def has_labels(spec: TaskSpec) -> bool:
    """Return whether the task reads labels from the data."""
    return spec.labels is not None


def compares_pairs(spec: TaskSpec) -> bool:
    """Return whether the task trains on pairs of texts."""
    return spec.predicts == "pairs"


def has_labels_or_scores(spec: TaskSpec) -> bool:
    """Return whether the data may contain labels, or scores of pairs."""
    return has_labels(spec) or compares_pairs(spec)


def may_train_adapter(spec: TaskSpec) -> bool:
    """Return whether the task reads the section `adapter`."""
    return "adapter" not in spec.unread_sections


def trains_on_conversations(spec: TaskSpec) -> bool:
    """Return whether the prepared data of the task stores its targets: supervised turns of conversations."""
    return spec.stores_targets


def labels_whole_texts(spec: TaskSpec) -> bool:
    """Return whether the data has one label per text."""
    return spec.labels_texts


def labels_words(spec: TaskSpec) -> bool:
    """Return whether the data has one label per word."""
    return spec.labels is not None and not spec.labels_texts
