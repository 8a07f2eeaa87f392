"""Next tokens as targets, for tasks of causal models: framing and labels. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schedules import MaskingRates
from neobert.data.batches.targets import IGNORED, Targets
from neobert.data.store.segment_store import Segments
from neobert.data.tokenize.encoding import Column, Counts
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError

EVERY_TOKEN = MaskingRates(1.0, 1.0)
"""Targets per token in training and in evaluations, counting the last token of a segment, which has none."""


@dataclass(frozen=True, slots=True)
class NextTokens:
    """Target rule that labels each token with the next token of its segment; the last one has no label.

    The labels are shifted here, and nowhere else: model and loss compare position by position.

    Attributes:
        supervised: side column that marks the tokens to learn, one value per token; None: all.
    """

    supervised: Column | None = None

    @property
    def labels_tokens(self) -> bool:
        """Return whether labels are per token, not per segment."""
        return True

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:  # noqa: ARG002
        """Return the unchanged tokens, and int64 labels, -100 where no token follows or is supervised."""
        labels = np.roll(segments.ids, -1)
        if self.supervised is not None:
            is_learned: NDArray[Any] = segments.columns[self.supervised.name]
            labels[np.roll(is_learned, -1) == 0] = IGNORED
        labels[np.cumsum(segments.lengths) - 1] = IGNORED
        return Targets(segments.ids, labels)


def framing_with_end(tokenizer: TokenizerBundle) -> Framing:
    """Return a framing: the tokenizer's own start, and its end-of-text token after a document's last piece.

    The end is a target like any other token: a model that never saw one would not stop generating.
    """
    return Framing(tokenizer.framing.start, end=(tokenizer.end_id,), frames_pieces=False)


def check_targets(label: str, counts: Counts) -> None:
    """Raise DAT004 if no segment has a token to predict."""
    if counts.segments and counts.tokens <= counts.segments:
        raise ProjectError(
            "DAT004",
            f"no next token to predict: no document has two tokens ({counts.tokens:,} in all)",
            "set dataset.text_column to the column of the text, or use longer documents",
            label,
        )
