"""Data layer of classification: rows of labelled texts or pairs, encoded as segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.examples import Examples
from neobert.data.sources.rows import TEXT, Row
from neobert.data.tokenize.encoding import SECOND, Column, Counts, Encoded
from neobert.data.tokenize.framing import truncate_longest_first
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.tasks.classification.rows import LABEL, PAIR, is_regression, num_labels, row_format
from neobert.tasks.classification.section import CLASSIFICATION
from neobert.tasks.stored_labels import (
    OF_PAIRS,
    UNLABELLED,
    LabelEncoder,
    LabelledRows,
    labelled_text_encoder,
    refuse_split,
)


class LabelledTexts(LabelledRows):
    """Data layer of classification: a row is a text or a pair with its label, and becomes one segment."""

    @property
    def label(self) -> Column:
        """Side column of the labels."""
        return Column(LABEL, "float32" if is_regression(self.config) else "int64", is_per_token=False)

    def encoder(self, tokenizer: TokenizerBundle) -> ClassificationEncoder:
        """Build the encoder. Raises DAT020 if long texts would be split."""
        refuse_split(self.config, "a label belongs to a whole text")
        has_pairs = CLASSIFICATION.read_section(self.config).pair_column is not None
        framing = tokenizer.pair_framing if has_pairs else tokenizer.framing
        texts = labelled_text_encoder(self.config, tokenizer, framing, is_plain=has_pairs)
        return ClassificationEncoder(texts, self.label, has_pairs)

    def synthetic_columns(
        self, lengths: NDArray[np.int64], generator: np.random.Generator
    ) -> Mapping[str, NDArray[Any]]:
        """Return a random label for each segment: a class, or a score in [0, 1)."""
        if is_regression(self.config):
            return {LABEL: generator.random(len(lengths), dtype=np.float32)}
        return {LABEL: generator.integers(num_labels(self.config), size=len(lengths))}

    def identity(self) -> dict[str, Any]:
        """Return the settings of rows and labels that affect the prepared data, JSON-serializable."""
        section = CLASSIFICATION.read_section(self.config)
        of_pairs = OF_PAIRS if section.pair_column is not None else {}
        return (
            row_format(self.config).identity()
            | of_pairs
            | {
                "task": "classification",
                "problem": section.problem,
                "labels": list(section.label_names) if section.label_names else num_labels(self.config),
                "empty_texts": "left out",  # earlier prepared data has them
            }
        )


@dataclass(frozen=True, slots=True)
class ClassificationEncoder(LabelEncoder):
    """Encoder of rows as framed texts or pairs, with their labels."""

    has_pairs: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        """Side columns: labels and, for pairs, the position where the second text begins."""
        return (self.label, SECOND) if self.has_pairs else (self.label,)

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode one batch of rows. A pair that is truncated loses tokens from its longer text first."""
        rows, counts = list(rows), Counts()
        names = (TEXT, PAIR) if self.has_pairs else (TEXT,)
        ids = iter(list(each) for each in self.texts.token_ids(row[name] for row in rows for name in names))
        segments: list[list[int]] = []
        labels: list[float] = []
        seconds: list[int] = []
        too_long = None
        for place, row in enumerate(rows):
            parts = [next(ids) for _ in names]
            if any(parts) and row[LABEL] is None:
                counts.documents += 1
                counts.left_out[UNLABELLED] = counts.left_out.get(UNLABELLED, 0) + 1
                continue
            length = sum(map(len, parts)) + self.texts.framing.size
            if length > self.max_length and self.texts.long_documents == "error":
                too_long = too_long or (place, length)
            if (fitted := self._fit_parts(parts, length, counts)) is not None:
                segments.append(self.texts.framing.frame(*fitted))
                seconds.append(self.texts.framing.second_start(fitted[0]))
                labels.append(row[LABEL])
        lengths = [len(each) for each in segments]
        tokens = np.fromiter((token for each in segments for token in each), self.dtype, sum(lengths))
        values = np.array(labels, dtype=self.label.dtype)
        if self.label.dtype == "int64":
            classes, sizes = np.unique(values, return_counts=True)
            counts.labels = {str(each): int(size) for each, size in zip(classes, sizes, strict=True)}
        return self.build_encoded(
            tokens, lengths, values, counts, too_long, seconds if self.has_pairs else None
        )

    def _fit_parts(
        self, parts: Sequence[list[int]], length: int, counts: Counts
    ) -> Sequence[list[int]] | None:
        """Return a row's texts, truncated to the maximum length, or None if it is dropped or has no text."""
        counts.documents += 1
        if not any(parts):
            counts.empty += 1
            return None
        counts.histogram[(length - 1).bit_length()] += 1
        counts.one_sided += not all(parts)
        if length <= self.max_length:
            return parts
        if self.texts.long_documents != "truncate":
            counts.dropped += 1
            counts.tokens_lost += length
            return None
        counts.truncated += 1
        counts.tokens_lost += length - self.max_length
        return truncate_longest_first(parts, self.max_length - self.texts.framing.size)


def build_examples(config: RunConfig) -> Examples:
    """Return the data layer of a classification run."""
    return LabelledTexts(config)
