"""Mixtures of corpora: windows that draw from each corpus in proportion to its weight.

Each corpus is an endless sequence: its examples, reshuffled in every pass. Window w takes the next examples
of each sequence, as many as fill the corpus's share of the window's tokens. The start of window w in a
sequence is computed from w alone, so a resume needs only the `Cursor`, as for a single corpus.

Shapes: n examples of a window, N segments of all corpora.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.batches.shape import BatchShape
from neobert.data.batches.stateless_random import permutation_slice, stream_key
from neobert.data.batches.windows import PACKERS, WINDOW_EXAMPLES, Cursor, Window, pack_window
from neobert.data.store.segment_store import SAMPLE_SEGMENTS, LengthStatistics, SegmentStore

# A window holds a pass over the corpus that is read most often, but no fewer microbatches than this: the
# last ones of a window are not full.
MIN_MICROBATCHES = 128
_CORPUS_STREAM, _MIX_STREAM = 0x636F72707573, 0x6D6978


@dataclass(frozen=True, slots=True)
class CorpusSlice:
    """The examples of one corpus in a shared store, from `first` up to but not including `stop`.

    Attributes:
        weight: sampling weight; the corpus gets weight / (sum of all weights) of the drawn tokens.
    """

    label: str
    weight: float
    first: int
    stop: int
    num_tokens: int

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, eq=False)
class MixedText:
    """Several weighted corpora in one token store."""

    store: SegmentStore
    corpora: tuple[CorpusSlice, ...]

    def __len__(self) -> int:
        return len(self.store)

    def with_token_counts(self, start: Cursor) -> Cursor:
        """Return the cursor, with a token count of 0 per corpus if the cursor is at the start of a run."""
        if (start.window, start.index) != (0, 0):
            return start
        return replace(start, corpus_tokens=(0,) * len(self.corpora))

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all corpora."""
        return self.store.num_tokens

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """Share of the drawn tokens per corpus; the shares sum to 1."""
        weights = [Fraction(corpus.weight) for corpus in self.corpora]
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def tokens_per_pass(self) -> int:
        """Number of tokens drawn from all corpora during one pass over the most repeated corpus."""
        return int(min(c.num_tokens / share for c, share in zip(self.corpora, self.shares, strict=True)))

    def examples_per_token(self) -> list[Fraction]:
        """Return the number of examples of each corpus per token of the mixture."""
        pairs = zip(self.corpora, self.shares, strict=True)
        return [share * len(corpus) / corpus.num_tokens for corpus, share in pairs]

    def draw(self, seed: int, tokens: int, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw about `tokens` tokens for a window; return shuffled examples [n] and the pass of each [n]."""
        parts = [
            _sequence_examples(
                corpus, stream_key(_CORPUS_STREAM, seed, number), *window_range(per_token * tokens, window)
            )
            for number, (corpus, per_token) in enumerate(
                zip(self.corpora, self.examples_per_token(), strict=True)
            )
        ]
        examples, passes = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = permutation_slice(stream_key(_MIX_STREAM, seed, window), 0, len(examples), len(examples))
        return examples[order], passes[order]

    @cached_property
    def statistics(self) -> LengthStatistics:
        """Length statistics of the drawn examples."""
        return LengthStatistics.from_lengths(self.sample_lengths())

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return the lengths in tokens of a fixed sample of about `SAMPLE_SEGMENTS` drawn examples."""
        tokens = int(min(SAMPLE_SEGMENTS, 2 * len(self)) / sum(self.examples_per_token())) + 1
        return self.store.lengths(self.draw(0, tokens, 0)[0])

    def epochs(self, num_tokens: float) -> list[float]:
        """Return the number of passes over each corpus in a run of `num_tokens` tokens."""
        pairs = zip(self.corpora, self.shares, strict=True)
        return [float(num_tokens * share / corpus.num_tokens) for corpus, share in pairs]

    def report(self, num_tokens: float) -> dict[str, dict[str, Any]]:
        """Return the size, share and epochs of each corpus in a run of `num_tokens` tokens, by label."""
        rows = zip(self.corpora, self.shares, self.epochs(num_tokens), strict=True)
        return {
            corpus.label: {
                "share": round(float(share), 6),
                "segments": len(corpus),
                "tokens": corpus.num_tokens,
                "tokens_read": round(float(num_tokens * share)),
                "epochs": round(epochs, 3),
            }
            for corpus, share, epochs in rows
        }


@dataclass(frozen=True, eq=False)
class MixedWindows:
    """Endless windows of a mixture. Epochs are counted per corpus, not for the mixture."""

    text: MixedText
    shape: BatchShape
    seed: int

    @cached_property
    def tokens_per_window(self) -> int:
        """Mean number of tokens per window."""
        most = int(WINDOW_EXAMPLES / sum(self.text.examples_per_token()))
        least = MIN_MICROBATCHES * self.shape.capacity
        return max(1, min(most, max(least, self.text.tokens_per_pass)))

    def load(self, cursor: Cursor) -> Window:
        """Draw and pack a window. The sample id of a segment is its store number plus N times its pass."""
        examples, passes = self.text.draw(self.seed, self.tokens_per_window, cursor.window)
        window = pack_window(
            replace(cursor, index=0),
            self.text.store,
            examples,
            self.shape,
            PACKERS[cursor.packer],
            self.seed,
            passes * self.text.store.num_segments,
            cursor.at_window(cursor.epoch, cursor.window + 1),
        )
        return replace(window, corpus_stops=np.array([corpus.stop for corpus in self.text.corpora]))


def window_range(examples_per_window: Fraction, window: int) -> tuple[int, int]:
    """Return the start and stop of a window in a corpus's sequence, exact for any window number."""
    return int(examples_per_window * window), int(examples_per_window * (window + 1))


def _sequence_examples(
    corpus: CorpusSlice, key: int, start: int, stop: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the examples at `start` to `stop` of a corpus's endless sequence, and the pass of each."""
    size = len(corpus)
    passes = range(start // size, -(-stop // size))
    bounds = [(max(start - size * each, 0), min(stop - size * each, size)) for each in passes]
    none = np.empty(0, dtype=np.int64)
    places = [
        permutation_slice(stream_key(key, each), low, high, size)
        for each, (low, high) in zip(passes, bounds, strict=True)
    ]
    numbers = [np.full(high - low, each, np.int64) for each, (low, high) in zip(passes, bounds, strict=True)]
    return corpus.first + np.concatenate([none, *places]), np.concatenate([none, *numbers])
