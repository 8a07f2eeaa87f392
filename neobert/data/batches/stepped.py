"""Mixtures in which each optimizer step reads one corpus, so that similar texts are compared.

A step takes the next examples of a pass over its corpus, always the same number, and packs them into its
microbatches; the last examples of a pass, too few for a step, are left out. The corpus of each step of a
window is computed from the number of the window alone.

Shapes: n examples of a window, N segments of all corpora.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from neobert.data.batches.mixture import CorpusSlice, MixedText, window_range
from neobert.data.batches.packing import Packer, PackPlan
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.stateless_random import permutation_slice, stream_key
from neobert.data.batches.windows import PACKERS, Cursor, Window, plan_microbatches
from neobert.data.store.segment_store import SAMPLE_SEGMENTS, LengthStatistics

WINDOW_STEPS = 64
SPREAD = 2.0
"""Margin of a step's examples below the mean capacity of its microbatches, in standard deviations. Steps
that still do not fit leave out their last examples."""
_CORPUS_STREAM, _STEP_STREAM = 0x736F75726365, 0x73746570


@dataclass(frozen=True, eq=False)
class SteppedText(MixedText):
    """Several weighted corpora in one token store. A step reads one; `shares` are fractions of the steps."""

    def corpus_lengths(self, corpus: CorpusSlice) -> NDArray[np.int64]:
        """Return the lengths in tokens of a fixed sample of a corpus's examples."""
        size = len(corpus)
        places = permutation_slice(0, 0, min(SAMPLE_SEGMENTS, size), size)
        return self.store.lengths(corpus.first + places)

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return sampled lengths of the corpus with the shortest examples, of which most fit into a step."""
        return min(map(self.corpus_lengths, self.corpora), key=lambda lengths: float(lengths.mean()))

    @cached_property
    def statistics(self) -> LengthStatistics:
        """Length statistics of the corpus with the shortest examples."""
        return LengthStatistics.from_lengths(self.sample_lengths())

    def examples_per_step(self, corpus: CorpusSlice, shape: BatchShape, microbatches: int) -> int:
        """Return how many distinct examples of a corpus one step reads."""
        most = min(len(corpus), microbatches * shape.max_examples)
        if not shape.is_packed:
            return most
        lengths = LengthStatistics.from_lengths(self.corpus_lengths(corpus))
        mean = microbatches * shape.capacity / lengths.mean
        return max(1, min(most, int(mean - SPREAD * lengths.std / lengths.mean * sqrt(mean))))


@dataclass(frozen=True, eq=False)
class SteppedWindows:
    """Endless windows of steps that read one corpus each.

    Attributes:
        microbatches: microbatches of a step, of all ranks.
    """

    text: SteppedText
    shape: BatchShape
    seed: int
    microbatches: int

    @cached_property
    def sizes(self) -> list[int]:
        """Number of examples per step, by corpus."""
        return [
            self.text.examples_per_step(corpus, self.shape, self.microbatches) for corpus in self.text.corpora
        ]

    def load(self, cursor: Cursor) -> Window:
        """Draw and pack a window. The sample id of a segment is its store number plus N times its pass."""
        text, packer = self.text, PACKERS[cursor.packer]
        drawn, plans = [], []
        for number, step in self._window_steps(cursor.window):
            drawn.append(self._draw_step(number, step))
            plans.append(self._plan_step(text.store.lengths(drawn[-1][0]), packer))
        examples, passes = (np.concatenate(each) for each in zip(*drawn, strict=True))
        plan = _concatenate_plans(plans, [len(each) for each, _ in drawn], self.shape.capacity)
        return Window(
            start=replace(cursor, index=0),
            store=text.store,
            examples=examples,
            plan=plan,
            order=np.arange(plan.num_bins, dtype=np.int64),
            sample_offset=passes * text.store.num_segments,
            after=cursor.at_window(cursor.epoch, cursor.window + 1),
            corpus_stops=np.array([corpus.stop for corpus in text.corpora]),
        )

    def _window_steps(self, window: int) -> Iterator[tuple[int, int]]:
        """Yield (corpus index, number of the step among the corpus's steps) for each step of a window."""
        steps = [range(*window_range(share * WINDOW_STEPS, window)) for share in self.text.shares]
        numbers = np.repeat(np.arange(len(steps)), [len(each) for each in steps])
        remaining = [*map(iter, steps)]
        key = stream_key(_STEP_STREAM, self.seed, window)
        for number in numbers[permutation_slice(key, 0, len(numbers), len(numbers))].tolist():
            yield number, next(remaining[number])

    def _draw_step(self, number: int, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the examples [n] of a step of a corpus, and the pass of each [n]."""
        corpus, size = self.text.corpora[number], self.sizes[number]
        done, position = divmod(step, len(corpus) // size)
        key = stream_key(_CORPUS_STREAM, self.seed, number, done)
        examples = corpus.first + permutation_slice(key, position * size, (position + 1) * size, len(corpus))
        return examples, np.full(size, done, np.int64)

    def _plan_step(self, lengths: NDArray[np.int64], packer: Packer) -> PackPlan:
        """Pack the examples of a step into its microbatches; the last ones may be empty."""
        plan = plan_microbatches(lengths, self.shape, packer, is_sorted=False)
        offsets = plan.offsets[: self.microbatches + 1]
        missing = self.microbatches + 1 - len(offsets)
        return replace(plan, offsets=np.append(offsets, np.repeat(offsets[-1:], missing)))


def _concatenate_plans(plans: list[PackPlan], sizes: list[int], capacity: int) -> PackPlan:
    """Concatenate plans into one; `sizes` are their numbers of examples."""
    documents, offsets, examples, placed = [], [np.zeros(1, np.int64)], 0, 0
    for plan, size in zip(plans, sizes, strict=True):
        documents.append(plan.documents[: plan.offsets[-1]] + examples)
        offsets.append(plan.offsets[1:] + placed)
        examples, placed = examples + size, placed + int(plan.offsets[-1])
    num_tokens = sum(plan.num_tokens for plan in plans)
    return PackPlan(np.concatenate(documents), np.concatenate(offsets), capacity, num_tokens)
