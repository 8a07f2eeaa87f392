"""Documents of the passkey test: key words in filler text, and a question at the end.

    filler. The secret words are river lantern copper. filler. The secret words are [MASK] [MASK] [MASK].

The question of a causal model states the words again and ends the document: each is predicted from the tokens
before it, as in greedy generation up to the first wrong word.

A document has the same tokens for the same seed, length, depth and number, whatever else is tested.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.encoding.packed_rows import Tokens
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.model_folder import CODE

DEPTHS = (0.0, 0.25, 0.5, 0.75)
"""Positions of the key words, as shares of the filler: at a depth of 1 they would be next to the question."""
KEY_WORDS, MIN_LETTERS, MIN_WORDS = 3, 4, 10
STATEMENT = "The secret words are"
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    "The road is long and the night is cold. People come and go, and nobody remembers them."
)


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens of a document, the positions that predict its key words, and their ids.

    A mask token predicts the word at its position; a token of a causal model predicts the next one.
    """

    tokens: Tokens
    queried: NDArray[np.int64]
    key: NDArray[np.int64]


class Documents:
    """Generator of random documents for a tokenizer. Raises `ProjectError` if it has too few whole words.

    Attributes:
        words: ids of the words that keys are drawn from.
        min_length: tokens of a document without filler.
    """

    def __init__(self, bundle: TokenizerBundle, *, is_causal: bool) -> None:
        self._bundle, self._is_causal = bundle, is_causal
        self._filler, self._statement, self._stop = map(self._token_ids, (FILLER, STATEMENT, "."))
        self.words = self._single_words()
        start, end = bundle.framing.start, bundle.framing.end
        self._start = start or ((bundle.end_id,) if is_causal else ())
        self._end = () if is_causal else (*self._stop, *end)
        stated = 2 * (len(self._statement) + KEY_WORDS) + len(self._stop)
        self.min_length = len(self._start) + stated + len(self._end)

    def document(self, seed: int, length: int, depth: float, number: int) -> Document:
        """Return document `number` of `length` tokens; its key is at `depth`, from 0 (start) to 1."""
        draw = random.Random(f"{seed}/{length}/{depth}/{number}")
        key = draw.sample(self.words, KEY_WORDS)
        room = length - self.min_length
        begins = draw.randrange(len(self._filler))
        filler = [self._filler[(begins + each) % len(self._filler)] for each in range(room)]
        position = round(depth * room)
        statement = [*self._statement, *key, *self._stop]
        answer = key if self._is_causal else [self._bundle.mask_id] * KEY_WORDS
        question = [*self._statement, *answer, *self._end]
        tokens = [*self._start, *filler[:position], *statement, *filler[position:], *question]
        first = length - len(self._end) - KEY_WORDS - self._is_causal
        queried = np.arange(first, first + KEY_WORDS)
        return Document(np.array(tokens, np.int64), queried, np.array(key, np.int64))

    def _token_ids(self, text: str) -> list[int]:
        return list(self._bundle.tokenizer.encode(text, add_special_tokens=False))

    def _single_words(self) -> list[int]:
        """Return the ids of tokens that are words and not in the filler; refuse fewer than `MIN_WORDS`."""
        tokenizer, taken = self._bundle.tokenizer, {*self._filler, *self._statement}
        texts = {each: tokenizer.decode([each]).strip() for each in range(len(tokenizer))}
        words = [each for each, text in texts.items() if _is_word(text) and each not in taken]
        before = self._token_ids("are")
        spelled = tokenizer([f"are {texts[each]}" for each in words], add_special_tokens=False)["input_ids"]
        found = [each for each, ids in zip(words, spelled, strict=True) if ids == [*before, each]]
        if len(found) < MIN_WORDS:
            message = f"the tokenizer has {len(found)} single-token words (at least {MIN_WORDS})"
            hint = "test a model whose tokenizer has whole words"
            raise ProjectError(CODE, message, hint, "", EXIT_USAGE)
        return found


def _is_word(text: str) -> bool:
    return len(text) >= MIN_LETTERS and text.isascii() and text.isalpha() and text.islower()
