"""Predictions of masked words in the evaluation text: samples.json of a run directory.

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
"""Maximum length in characters of a text or prediction; the trainer writes no longer ones."""


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A word of the evaluation text, and the text around it."""

    before: str
    word: str
    after: str


class Guess(NamedTuple):
    """A predicted word and its probability."""

    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Predictions of one evaluation: the most probable words per text, the best first."""

    step: int
    guesses: list[list[Guess]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Masked texts, and the evaluations that predicted them, by ascending step."""

    texts: list[MaskedText] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    def with_evaluation(self, evaluation: Evaluation) -> Samples:
        """Add an evaluation; beyond `MAX_EVALUATIONS`, leave out the one whose neighbours are closest."""
        evaluations = [*self.evaluations, evaluation]
        if len(evaluations) > MAX_EVALUATIONS:
            del evaluations[_densest_step_index([each.step for each in evaluations])]
        return Samples(self.texts, evaluations)

    def before(self, step: int) -> Samples:
        """Return the samples without evaluations at or after `step`."""
        return Samples(self.texts, [each for each in self.evaluations if each.step < step])

    def as_json(self) -> dict[str, Any]:
        """Return the content of samples.json."""
        return asdict(self)


def _densest_step_index(steps: Sequence[int]) -> int:
    """Return the index, excluding first and last, of the step whose neighbours are closest to each other."""
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
    return MaskedText(*(_require_text(content[name]) for name in ("before", "word", "after")))


def _parse_evaluation(content: Any, num_texts: int) -> Evaluation:
    step, guesses = content["step"], content["guesses"]
    if not is_count(step) or len(guesses) != num_texts:
        raise ValueError
    return Evaluation(step, [[_parse_guess(guess) for guess in each[:MAX_GUESSES]] for each in guesses])


def _parse_guess(content: Any) -> Guess:
    text, probability = content
    if not is_number(probability) or not 0 <= probability <= 1:
        raise ValueError
    return Guess(_require_text(text), float(probability))


def _require_text(value: Any) -> str:
    if not is_text(value) or len(value) > LONGEST:
        raise ValueError
    return value
