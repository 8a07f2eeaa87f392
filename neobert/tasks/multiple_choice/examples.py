"""Data layer of multiple choice: a row is an example with a segment for each choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.targets import IGNORED
from neobert.data.examples import Examples
from neobert.data.sources.rows import TEXT, Row
from neobert.data.tokenize.encoding import GROUP, SECOND, Column, Counts, Encoded
from neobert.data.tokenize.framing import truncate_longest_first
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.tasks.multiple_choice.labels import LABEL, choice_index, row_choices
from neobert.tasks.multiple_choice.rows import START, choice_fields, row_format
from neobert.tasks.multiple_choice.section import MULTIPLE_CHOICE
from neobert.tasks.stored_labels import (
    OF_PAIRS,
    LabelEncoder,
    LabelledRows,
    labelled_text_encoder,
    refuse_split,
)

RIGHT = Column(LABEL, "int64", is_per_token=False)
"""Index of the right choice, at the first choice of each row; -100 at the others."""
PLACE = Column(GROUP, "uint8", is_per_token=False)


class ChoiceRows(LabelledRows):
    """Data layer of multiple choice: a row is a prompt with choices, one of them right."""

    label = RIGHT

    def encoder(self, tokenizer: TokenizerBundle) -> ChoiceEncoder:
        """Build the encoder. Raises DAT020 if long texts would be split."""
        refuse_split(self.config, "a choice is scored as a whole")
        texts = labelled_text_encoder(self.config, tokenizer, tokenizer.pair_framing)
        return ChoiceEncoder(texts, RIGHT, choice_fields(self.config))

    def synthetic_columns(
        self, lengths: NDArray[np.int64], generator: np.random.Generator
    ) -> Mapping[str, NDArray[Any]]:
        """Return the side columns of examples with `max_choices` choices each, a random one of them right.

        The last example has fewer choices if `lengths` is not a multiple of `max_choices`.
        """
        most = MULTIPLE_CHOICE.read_section(self.config).max_choices
        position = np.arange(len(lengths)) % most
        last = len(lengths) - len(lengths) % most
        right = generator.integers(np.where(np.arange(len(lengths)) < last, most, len(lengths) - last))
        return {GROUP: position.astype(PLACE.dtype), LABEL: np.where(position == 0, right, IGNORED)}

    def identity(self) -> dict[str, Any]:
        """Return the settings of rows that affect the prepared data, JSON-serializable."""
        return row_format(self.config).identity() | {"task": "multiple_choice"} | OF_PAIRS


@dataclass(frozen=True, slots=True)
class ChoiceEncoder(LabelEncoder):
    """Encoder of rows as pairs of the prompt and each choice, with the index of the right one.

    Attributes:
        fields: field names of the choices.
    """

    fields: tuple[str, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Side columns: label, position where the choice begins, and index of the choice in its row."""
        return (self.label, SECOND, PLACE)

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode one batch of rows. With `dataset.long_documents: drop`, a long choice drops its row."""
        rows, counts, too_long = list(rows), Counts(), None
        # A row without text has no label.
        texts = [[] if row[LABEL] is None else row_choices(row, self.fields) for row in rows]
        pairs = (
            pair for row, found in zip(rows, texts, strict=True) for pair in prompt_choice_pairs(row, found)
        )
        ids = iter(list(each) for each in self.texts.token_ids(text for pair in pairs for text in pair))
        segments: list[list[int]] = []
        labels: list[int] = []
        positions: list[int] = []
        seconds: list[int] = []
        for position, (row, found) in enumerate(zip(rows, texts, strict=True)):
            parts = [(next(ids), next(ids)) for _ in found]
            longest = max((sum(map(len, each)) for each in parts), default=0) + self.texts.framing.size
            if longest > self.max_length and self.texts.long_documents == "error":
                too_long = too_long or (position, longest)
            kept = self._fit_pairs(parts, longest, counts)
            segments += [self.texts.framing.frame(*each) for each in kept]
            seconds += [self.texts.framing.second_start(first) for first, _ in kept]
            positions += range(len(kept))
            right = choice_index(row, len(found)) if kept else None
            labels += [IGNORED if right is None or at else right for at in range(len(kept))]
        lengths = [len(each) for each in segments]
        tokens = np.fromiter((token for each in segments for token in each), self.dtype, sum(lengths))
        values = np.array(labels, np.int64)
        classes, sizes = np.unique(values[values != IGNORED], return_counts=True)
        counts.labels = {str(each): int(size) for each, size in zip(classes, sizes, strict=True)}
        encoded = self.build_encoded(tokens, lengths, values, counts, too_long, seconds)
        return replace(encoded, columns={**encoded.columns, GROUP: np.array(positions, PLACE.dtype)})

    def _fit_pairs(
        self, parts: Sequence[tuple[list[int], list[int]]], longest: int, counts: Counts
    ) -> list[Sequence[list[int]]]:
        """Return the texts of a row's choices, truncated to the maximum length; empty if it is dropped."""
        counts.documents += 1
        if not any(one or other for one, other in parts):
            counts.empty += 1
            return []
        counts.histogram[(longest - 1).bit_length()] += 1
        room = self.max_length - self.texts.framing.size
        if longest > self.max_length and self.texts.long_documents != "truncate":
            counts.dropped += 1
            counts.tokens_lost += sum(len(one) + len(other) for one, other in parts)
            return []
        counts.truncated += longest > self.max_length
        counts.tokens_lost += sum(max(0, len(one) + len(other) - room) for one, other in parts)
        return [each if sum(map(len, each)) <= room else truncate_longest_first(each, room) for each in parts]


def prompt_choice_pairs(row: Row, choices: Sequence[str]) -> list[tuple[str, str]]:
    """Return a pair of the prompt and each choice; a row's `start`, if any, precedes its choices."""
    start = f"{row[START]} " if row.get(START) else ""
    return [(row[TEXT], start + choice) for choice in choices]


def build_examples(config: RunConfig) -> Examples:
    """Return the data layer of a multiple choice run."""
    return ChoiceRows(config)
