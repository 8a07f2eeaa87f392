"""Halves of documents, a segment each, as one example."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from neobert.data.batches.targets import IGNORED, Targets
from neobert.data.sources.rows import TEXT
from neobert.data.tokenize.encoding import GROUP, Column, SegmentEncoder
from neobert.tasks.pretraining.examples import Documents

COLUMN = Column(GROUP, "uint8", is_per_token=False)


class HalvesEncoder(SegmentEncoder):
    """Encoder of the first and the second half of each text's words."""

    def encode(self, rows):
        words = [row[TEXT].split() for row in rows]
        halves = [half for each in words for half in (each[: len(each) // 2], each[len(each) // 2 :])]
        encoded = super().encode({TEXT: " ".join(half)} for half in halves)
        assert len(encoded.lengths) == len(halves)
        return replace(encoded, columns={GROUP: np.tile(np.arange(2, dtype=np.uint8), len(words))})


class FirstHalves:
    """Label the first half of each document."""

    labels_tokens = False

    def targets(self, segments, *, epoch: int, seed: int) -> Targets:
        return Targets(segments.ids, np.where(segments.columns[GROUP] == 0, 0, IGNORED))


class Halves(Documents):
    """Documents in halves."""

    def encoder(self, tokenizer) -> HalvesEncoder:
        texts = super().encoder(tokenizer)
        values = {name: getattr(texts, name) for name in SegmentEncoder.__slots__}
        return HalvesEncoder(**values | {"columns": (COLUMN,), "min_length": 1, "long_documents": "truncate"})

    def target_rule(self, _tokenizer) -> FirstHalves:
        return FirstHalves()

    def identity(self):
        return super().identity() | {"task": "halves"}


def build_examples(config) -> Halves:
    """Build the examples of a run."""
    return Halves(config)
