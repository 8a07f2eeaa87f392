"""Labels that are stored with the text: base class of their encoders, and their target rule."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.batches.targets import Targets
from neobert.data.store.segment_store import Segments
from neobert.data.tokenize.encoding import SECOND, Column, Counts, Encoded, SegmentEncoder, segment_encoder
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.tasks.row_encoder import RowEncoder

log = logging.getLogger(__name__)
PLAIN = {"special_tokens": "plain text"}
"""Part of the identity of texts that are plain: earlier prepared data has special tokens in them."""
UNLABELLED = "label"
"""Kind of `Counts.left_out`: a row without a label."""
OF_PAIRS = PLAIN | {"token_types": "stored"}


def labelled_text_encoder(
    config: RunConfig, tokenizer: TokenizerBundle, framing: Framing, *, is_plain: bool = True
) -> SegmentEncoder:
    """Build the encoder of labelled texts, with the run's length limit and no minimum length.

    `is_plain` as in `SegmentEncoder`. Raises `ProjectError` MOD002 if the length limit leaves no text.
    """
    length, fate = segment_length(config), config.dataset.long_documents
    return segment_encoder(tokenizer, length, 1, fate, framing, is_plain=is_plain)


def refuse_split(config: RunConfig, reason: str) -> None:
    """Raise DAT020 if long texts would be split."""
    if config.dataset.long_documents == "split":
        raise ProjectError(
            "DAT020",
            f"dataset.long_documents is split, but {reason}",
            "set dataset.long_documents to truncate, drop or error",
            "dataset.long_documents",
        )


@dataclass(frozen=True)
class LabelledRows(ABC):
    """Base of the data layers of labelled rows. Subclasses define the encoder and the identity."""

    config: RunConfig

    @property
    @abstractmethod
    def label(self) -> Column:
        """Side column of the labels."""

    def target_rule(self, tokenizer: TokenizerBundle) -> StoredLabels:  # noqa: ARG002  (labels are in the store)
        """Return the target rule that reads the labels from the token store."""
        return StoredLabels(self.label)

    def check(self, label: str, counts: Counts) -> None:
        """Warn about rows without text or label, and about pairs with one text.

        Labels are validated when rows are read; rules check the classes.
        """
        for number, what in ((counts.empty, "text"), (counts.left_out.get(UNLABELLED, 0), "label")):
            if number:
                verbs = "has no {} and is left out" if number == 1 else "have no {} and are left out"
                log.warning("%s: %s %s", label, counted(number, "row"), verbs.format(what))
        if counts.one_sided:
            verbs = "has" if counts.one_sided == 1 else "have"
            log.warning("%s: %s %s only one of two texts", label, counted(counts.one_sided, "row"), verbs)


@dataclass(frozen=True, slots=True)
class LabelEncoder(RowEncoder):
    """Base of encoders of labelled rows. Subclasses define `encode`.

    Attributes:
        label: side column of the labels.
    """

    label: Column

    @property
    def columns(self) -> tuple[Column, ...]:
        """Side columns: the labels."""
        return (self.label,)

    def build_encoded(
        self,
        tokens: NDArray[Any],
        lengths: Sequence[int],
        labels: NDArray[Any],
        counts: Counts,
        too_long: tuple[int, int] | None,
        seconds: Sequence[int] | None = None,
    ) -> Encoded:
        """Return the encoded batch of concatenated `tokens` [n]; count its segments and tokens in `counts`.

        `too_long`: a segment over the limit, for `Encoded`; None without one. `seconds`: values of the column
        `SECOND`, for pairs.
        """
        counts.segments, counts.tokens = len(lengths), len(tokens)
        counts.unknown = self.texts.num_unknown(tokens)
        columns: dict[str, NDArray[Any]] = {self.label.name: labels}
        if seconds is not None:
            columns[SECOND.name] = np.array(seconds, SECOND.dtype)
        return Encoded(tokens, np.array(lengths, np.int64), counts, too_long, columns)


@dataclass(frozen=True, slots=True)
class StoredLabels:
    """Target rule that reads the labels from a side column of the token store."""

    label: Column

    @property
    def labels_tokens(self) -> bool:
        """Return whether labels are per token, not per segment."""
        return self.label.is_per_token

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:  # noqa: ARG002
        """Return the token ids unchanged, with the stored labels: integers as int64, scores as float32."""
        labels: NDArray[Any] = segments.columns[self.label.name]
        return Targets(segments.ids, labels.astype(np.int64 if labels.dtype.kind == "i" else np.float32))
