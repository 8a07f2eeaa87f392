"""Detection of misspelled names. A similar name with another word, as log_level for log_every, is not one."""

from __future__ import annotations

from collections.abc import Iterable

MAX_EDITS, SHORT_WORD = 2, 5
SHORTEST_ABBREVIATION = 4


def misspelt(name: str, candidates: Iterable[str], *, may_be_short: bool = False) -> str:
    """Return the candidate of which `name` is a misspelling; empty if there is none.

    Args:
        may_be_short: whether a word of `name` may be the beginning of a word, as in gradient_clip.
    """
    written = name.replace("-", "_").lower()
    distances = ((_distance(written, each, may_be_short=may_be_short), each) for each in candidates)
    near = min(distances, key=lambda pair: pair[0], default=(MAX_EDITS + 1, ""))
    return near[1] if near[0] <= MAX_EDITS else ""


def _distance(name: str, other: str, *, may_be_short: bool) -> int:
    """Return the number of typing errors between two names; more than `MAX_EDITS` if words differ."""
    if abs(len(name) - len(other)) > MAX_EDITS + 2 * (may_be_short and SHORTEST_ABBREVIATION):
        return MAX_EDITS + 1
    words, others = name.split("_"), other.split("_")
    if len(words) != len(others):
        return 1 if name.replace("_", "") == other.replace("_", "") else MAX_EDITS + 1
    if sorted(words) == sorted(others):
        return int(words != others)
    pairs = zip(words, others, strict=True)
    return sum(_distance_of_words(*pair, may_be_short=may_be_short) for pair in pairs)


def _distance_of_words(word: str, other: str, *, may_be_short: bool) -> int:
    if may_be_short and len(word) >= SHORTEST_ABBREVIATION and other.startswith(word):
        return int(word != other)
    limit = 1 if min(len(word), len(other)) <= SHORT_WORD else MAX_EDITS
    number = edits(word, other)
    return number if number <= limit else MAX_EDITS + 1


def edits(word: str, other: str) -> int:
    """Return the number of letters to insert, remove, replace, or swap with their neighbour."""
    if abs(len(word) - len(other)) > MAX_EDITS:
        return MAX_EDITS + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        earlier, before, row = before, row, [i]
        for j, meant in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != meant)))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (other[j - 2], meant):
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row[-1]
