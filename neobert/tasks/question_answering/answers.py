"""Choice of an answer among windows, and its scores by the rules of SQuAD's evaluation script (v2.0)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neobert.tasks.question_answering.objective import LOWEST

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))


def best_window(spans: NDArray[np.float64], threshold: float | None) -> int | None:
    """Return the row of `best_spans` [windows, 4] with the best span of a question, or None (no answer).

    The score of no answer is the lowest of all windows, since a window may simply lack the answer.
    """
    best = int(spans[:, 1].argmax())
    score = spans[best, 1]
    if score <= LOWEST or (threshold is not None and spans[:, 0].min() - score > threshold):
        return None
    return best


def normalize_answer(text: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def answer_scores(answer: str, wanted: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of an answer, each the best over the `wanted` answers.

    An empty `wanted` means that the question has no answer.
    """
    guessed = normalize_answer(answer)
    true = [words for words in map(normalize_answer, wanted) if words] or [[]]
    return float(guessed in true), max(_f1(guessed, words) for words in true)


def _f1(guessed: Sequence[str], true: Sequence[str]) -> float:
    if not guessed or not true:
        return float(guessed == true)
    common = (Counter(guessed) & Counter(true)).total()
    return 2 * common / (len(guessed) + len(true))
