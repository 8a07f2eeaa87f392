"""Guesses at masked words of the evaluation text: samples.json of a run directory.

The file has the texts once, and the guesses of at most `MAX_EVALUATIONS` evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from neobert.runfiles.json_values import is_count, is_number, is_text

FILE_NAME = "samples.json"
MAX_EVALUATIONS = 64
MAX_TEXTS = MAX_GUESSES = 8
LONGEST = 400
"""Characters of a text or guess that are read; longer ones were not written by the trainer."""


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A word of the evaluation text, and the text around it."""

    before: str
    word: str
    after: str


class Guess(NamedTuple):
    """A guess at a masked word, and its probability."""

    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Guesses of one evaluation: for each text the most probable ones, the best first."""

    step: int
    guesses: list[list[Guess]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Masked texts, and the guesses at each by ascending steps."""

    texts: list[MaskedText] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    def followed_by(self, evaluation: Evaluation) -> Samples:
        """Return the samples with a further evaluation; beyond the limit, one of the densest is dropped."""
        evaluations = [*self.evaluations, evaluation]
        if len(evaluations) > MAX_EVALUATIONS:
            del evaluations[_densest([each.step for each in evaluations])]
        return Samples(self.texts, evaluations)

    def before(self, step: int) -> Samples:
        """Return the samples without the evaluations from a step on."""
        return Samples(self.texts, [each for each in self.evaluations if each.step < step])

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return asdict(self)


def _densest(steps: Sequence[int]) -> int:
    """Return the place between the first and the last step whose neighbours are closest to each other."""
    return min(range(1, len(steps) - 1), key=lambda place: steps[place + 1] - steps[place - 1])


def parse_samples(content: Mapping[str, Any]) -> Samples:
    """Return the samples in the content of a file, which is untrusted; empty if the content is damaged."""
    try:
        texts = [_parse_text(each) for each in content["texts"]]
        evaluations = [_parse_evaluation(each, len(texts)) for each in content["evaluations"]]
    except (KeyError, TypeError, ValueError):
        return Samples()
    are_few = 0 < len(texts) <= MAX_TEXTS and len(evaluations) <= MAX_EVALUATIONS
    return Samples(texts, evaluations) if are_few else Samples()


def _parse_text(content: Any) -> MaskedText:
    return MaskedText(*(_text(content[name]) for name in ("before", "word", "after")))


def _parse_evaluation(content: Any, num_texts: int) -> Evaluation:
    step, guesses = content["step"], content["guesses"]
    if not is_count(step) or len(guesses) != num_texts:
        raise ValueError
    return Evaluation(step, [[_parse_guess(guess) for guess in each[:MAX_GUESSES]] for each in guesses])


def _parse_guess(content: Any) -> Guess:
    text, probability = content
    if not is_number(probability) or not 0 <= probability <= 1:
        raise ValueError
    return Guess(_text(text), float(probability))


def _text(value: Any) -> str:
    if not is_text(value) or len(value) > LONGEST:
        raise ValueError
    return value
