"""Data layer of token classification: rows of labelled words, encoded as segments with token labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.targets import IGNORED
from neobert.data.examples import Examples
from neobert.data.sources.rows import TEXT, Row
from neobert.data.tokenize.encoding import Column, Counts, Encoded
from neobert.data.tokenize.offsets import Ids, tokenize_with_offsets
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.tasks.stored_labels import PLAIN, LabelEncoder, LabelledRows, labelled_text_encoder
from neobert.tasks.token_classification.labels import SEPARATOR, TAGS
from neobert.tasks.token_classification.rows import row_format
from neobert.tasks.token_classification.section import TOKEN_CLASSIFICATION

MAX_IN_INT16 = 2**15


class LabelledWords(LabelledRows):
    """Data layer of token classification: a row is a list of words, each with a label."""

    @property
    def label(self) -> Column:
        """Side column of the labels, as narrow as their number allows."""
        is_narrow = len(TOKEN_CLASSIFICATION.read_section(self.config).label_names) <= MAX_IN_INT16
        return Column(TAGS, "int16" if is_narrow else "int32", is_per_token=True)

    def encoder(self, tokenizer: TokenizerBundle) -> WordEncoder:
        """Build the encoder of words, joined as texts without special tokens."""
        texts = labelled_text_encoder(self.config, tokenizer, tokenizer.framing)
        return WordEncoder(texts, self.label, TOKEN_CLASSIFICATION.read_section(self.config).label_names)

    def synthetic_columns(self, lengths: Ids, generator: np.random.Generator) -> Mapping[str, NDArray[Any]]:
        """Return a random label for each token."""
        labels = len(TOKEN_CLASSIFICATION.read_section(self.config).label_names)
        return {TAGS: generator.integers(labels, size=int(lengths.sum())).astype(self.label.dtype)}

    def identity(self) -> dict[str, Any]:
        """Return the settings of rows and labels that affect the prepared data, JSON-serializable."""
        names = list(TOKEN_CLASSIFICATION.read_section(self.config).label_names)
        described = row_format(self.config).identity() | {"task": "token_classification", "labels": names}
        described |= PLAIN
        if self.label.dtype == "int16":
            return described
        return described | {"label_type": self.label.dtype}  # earlier prepared data has truncated labels


@dataclass(frozen=True, slots=True)
class WordEncoder(LabelEncoder):
    """Encoder of rows as framed segments; the first token of each word has the word's label.

    Words are joined by spaces and tokenized as one text, like the input of a transformers pipeline. A word
    that spells a special token is plain text: as a token it may take the space after it, and with it the
    label of the next word.
    """

    names: tuple[str, ...]

    def encode(self, rows: Iterable[Row]) -> Encoded:
        """Encode one batch. Texts that are too long are split or truncated between words."""
        counts, too_long = Counts(), None
        ids: list[Ids] = []
        labels: list[Ids] = []
        total = {"total": 0, "without_token": 0, "cut": 0}
        for place, (row, tokens, words) in enumerate(self._tokenize_rows(list(rows))):
            length, tags = len(tokens) + self.texts.framing.size, np.array(row[TAGS], np.int64)
            counts.documents += 1
            if length > self.max_length and self.texts.long_documents == "error":
                too_long = too_long or (place, length)
            labelled = label_first_tokens(words, tags)
            if len(tokens):
                counts.histogram[(length - 1).bit_length()] += 1
                kept = self._piece_bounds(words, counts)
            else:
                counts.empty += 1
                kept = []
            for start, stop in kept:
                before, after = self.texts.framing.piece_frame(start, stop, len(tokens))
                ids.append(np.array([*before, *tokens[start:stop].tolist(), *after], np.int64))
                labels.append(
                    np.pad(labelled[start:stop], (len(before), len(after)), constant_values=IGNORED)
                )
            with_token = int((labelled != IGNORED).sum())
            scored = sum(int((labelled[start:stop] != IGNORED).sum()) for start, stop in kept)
            total["total"] += len(tags)
            total["without_token"] += len(tags) - with_token
            total["cut"] += with_token - scored
        counts.words = total
        empty = np.empty(0, np.int64)
        tokens = np.concatenate([empty, *ids]).astype(self.dtype)
        values = np.concatenate([empty, *labels]).astype(self.label.dtype)
        numbers, sizes = np.unique(values[values != IGNORED], return_counts=True)
        counts.labels = {self.names[each]: int(size) for each, size in zip(numbers, sizes, strict=True)}
        return self.build_encoded(tokens, [len(each) for each in ids], values, counts, too_long)

    def _tokenize_rows(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Ids, Ids]]:
        """Yield each row with its token ids [T] and the word index of each token [T], -1 for empty tokens."""
        texts = (row[TEXT].replace(SEPARATOR, " ") for row in rows)
        for row, (ids, offsets) in zip(rows, tokenize_with_offsets(self.texts, texts), strict=True):
            yield row, ids, word_indices(row[TEXT], offsets)

    def _piece_bounds(self, words: Ids, counts: Counts) -> list[tuple[int, int]]:
        room, length = self.max_length - self.texts.framing.size, len(words)
        if length <= room:
            return [(0, length)]
        return list(self.texts.keep_pieces(length, split_between_words(words, room), counts))


def word_indices(text: str, offsets: Ids) -> Ids:
    """Return the word index of each token, int64 [T], from character offsets [T, 2]; -1 after the last word.

    A token belongs to the word of its last character. A space belongs to the word after it, which is where
    byte-level tokenizers put it, as part of a token or as a token; offsets may leave the space out.
    """
    is_space = np.frombuffer(text.encode("utf-32-le"), np.uint32) == ord(SEPARATOR)
    words = np.append(np.where(is_space, len(text), np.cumsum(is_space)), len(text))
    words = np.minimum.accumulate(words[::-1])[::-1]
    found = words[np.maximum(offsets[:, 1] - 1, offsets[:, 0])]
    return np.where(found < len(text), found, -1)


def label_first_tokens(words: Ids, tags: Ids) -> Ids:
    """Return token labels, int64 [T]: each word's label at its first token, -100 elsewhere."""
    labels = np.full(len(words), IGNORED, np.int64)
    present, first = np.unique(words, return_index=True)
    is_word = present >= 0
    labels[first[is_word]] = tags[present[is_word]]
    return labels


def split_between_words(words: Ids, room: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of pieces of at most `room` tokens; words are split only if longer than `room`."""
    start = 0
    while len(words) - start > room:
        stop = start + room
        while stop > start and words[stop] == words[stop - 1]:
            stop -= 1
        stop = stop if stop > start else start + room
        yield start, stop
        start = stop
    yield start, len(words)


def build_examples(config: RunConfig) -> Examples:
    """Return the data layer of a token classification run."""
    return LabelledWords(config)
