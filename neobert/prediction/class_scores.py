"""Scores of each class, from labels and predictions. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

DECIMALS = 4


def class_scores(
    pairs: Iterable[tuple[str, str]], names: Sequence[str], unit: Literal["texts", "words"] = "texts"
) -> dict[str, Any]:
    """Return number of labels, accuracy, and scores of each class: precision, recall, F1, predicted classes.

    As in scikit-learn, precision is 0 for a class that is never predicted, and recall for one without texts.

    Args:
        pairs: label and predicted class of each text or word.
        names: names of all classes, in their order.
        unit: unit with a label; the key of each class's number of labels.
    """
    counts = Counter(pairs)
    texts, predictions = Counter[str](), Counter[str]()
    for (label, predicted), count in counts.items():
        texts[label] += count
        predictions[predicted] += count

    def class_row(name: str) -> dict[str, Any]:
        right = counts[name, name]
        return {
            unit: texts[name],
            "precision": share(right, predictions[name]),
            "recall": share(right, texts[name]),
            "f1": share(2 * right, texts[name] + predictions[name]),
            "predicted_as": {other: counts[name, other] for other in names if counts[name, other]},
        }

    return {
        "labelled": counts.total(),
        "accuracy": share(sum(counts[name, name] for name in names), counts.total()),
        "classes": {name: class_row(name) for name in names},
    }


def share(part: int, whole: int) -> float:
    """Return part / whole, rounded to `DECIMALS`; 0 if whole is 0."""
    return round(part / whole, DECIMALS) if whole else 0.0
