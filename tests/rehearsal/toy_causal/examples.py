"""Documents whose labels are the next tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from neobert.data.batches.targets import IGNORED, Targets
from neobert.data.tokenize.framing import Framing
from neobert.tasks.pretraining.examples import Documents


class NextToken:
    """Label each token with the next one of its document, and the last with nothing."""

    labels_tokens = True

    def targets(self, segments, *, epoch: int, seed: int) -> Targets:
        labels = np.full_like(segments.ids, IGNORED)
        is_last = np.zeros(len(labels), dtype=np.bool_)
        is_last[np.cumsum(segments.lengths) - 1] = True
        labels[:-1] = segments.ids[1:]
        labels[is_last] = IGNORED
        return Targets(segments.ids, labels)


class NextTokenDocuments(Documents):
    """Documents whose targets are next tokens: only the last piece of a long one has its end."""

    def framing(self, tokenizer) -> Framing:
        return replace(tokenizer.framing, frames_pieces=False)

    def identity(self):
        return super().identity() | {"framing": "of documents"}

    def target_rule(self, _tokenizer) -> NextToken:
        return NextToken()


def build_examples(config) -> NextTokenDocuments:
    """Build the examples of a run."""
    return NextTokenDocuments(config)
