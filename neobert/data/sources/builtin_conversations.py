"""Corpora of short conversations, and of questions with answers, on colours, letters, sums and animals.

They are the same everywhere. Answers follow from the questions, so a small model learns them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

NAME = "builtin:conversations"
LABEL = f"{NAME} (300 short conversations)"
COLUMNS = ("messages",)
PAIRS_NAME, PAIRS_COLUMNS = "builtin:questions", ("query", "positive")
NUM_CONVERSATIONS = 300
VERSION = 1
"""Increment on any change of the texts: prepared text is cached under this version."""
_COLOURS = {
    "a lemon": "yellow",
    "grass": "green", "the sky": "blue", "snow": "white", "coal": "black", "blood": "red",
    "a carrot": "orange", "a plum": "purple", "a pig": "pink", "chocolate": "brown", "an elephant": "grey",
}  # fmt: skip
_SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "bee": "buzzes", "lion": "roars",
    "horse": "neighs", "snake": "hisses", "wolf": "howls", "sheep": "bleats",
}  # fmt: skip
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SYSTEM = "Answer in one sentence."


def conversation_rows() -> list[tuple[list[dict[str, Any]]]]:
    """Return the conversations, each the only column of a row."""
    return [(_nth_conversation(number),) for number in range(NUM_CONVERSATIONS)]


def _nth_conversation(number: int) -> list[dict[str, Any]]:
    """Return one to three questions with answers; every third conversation has a system prompt."""
    messages = [{"role": "system", "content": _SYSTEM}] if number % 3 == 0 else []
    for turn in range(1 + number % 3):
        question, answer = _question_and_answer(7 * number + 11 * turn)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def _question_and_answer(number: int) -> tuple[str, str]:
    kind, index = number % 4, number // 4
    if kind == 0:
        thing, colour = _nth_pair(_COLOURS, index)
        return f"What colour is {thing}?", f"{thing.capitalize()} is {colour}."
    if kind == 1:
        animal, sound = _nth_pair(_SOUNDS, index)
        return f"What does a {animal} do?", f"A {animal} {sound}."
    if kind == 2:
        letter, following = list(pairwise(_LETTERS))[index % 25]
        return f"Which letter comes after {letter}?", f"After {letter} comes {following}."
    first, second = index % 9 + 1, index // 9 % 9 + 1
    return f"What is {first} plus {second}?", f"{first} plus {second} is {first + second}."


def _nth_pair(pairs: dict[str, str], index: int) -> tuple[str, str]:
    return list(pairs.items())[index % len(pairs)]


def question_answer_pairs() -> list[tuple[str, str]]:
    """Return questions with answers: a colour, asked in three wordings, a sound, a letter or a sum."""
    found = []
    for thing, colour in _COLOURS.items():
        wordings = (
            f"What colour is {thing}?",
            f"Which colour has {thing}?",
            f"Tell me the colour of {thing}.",
        )
        found += [(each, f"{thing.capitalize()} is {colour}.") for each in wordings]
    found += [(f"What does a {animal} do?", f"A {animal} {sound}.") for animal, sound in _SOUNDS.items()]
    for letter, following in pairwise(_LETTERS):
        found.append((f"Which letter comes after {letter}?", f"After {letter} comes {following}."))
    digits = range(1, 10)
    sums = ((one, other) for one in digits for other in digits)
    return [*found, *((f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}.") for a, b in sums)]
