"""Text that is tokenized during training: windows of documents, read in order, resumed bit for bit.

Every rank reads and tokenizes the whole stream and keeps its share of the microbatches: simple and exact, but
the work is repeated on each rank. A window is `dataset.shuffle_buffer_size` documents, shuffled and packed
together; it is in memory as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import DatasetConfig
from neobert.data.examples import Examples
from neobert.data.sources.readers import State, TextSource
from neobert.data.sources.retries import RetryingReader
from neobert.data.sources.rows import Row
from neobert.data.store.token_store import LengthStatistics, TokenStore
from neobert.data.tokenize.encoding import Counts, Encoded, Encoder
from neobert.data.tokenize.encoding_pool import encode_all
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError

ORDERED_WINDOW_DOCUMENTS = 1024
HEAD_DOCUMENTS = 2048


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """Documents read and encoded, where the next window starts, and the number of its first segment."""

    store: TokenStore
    next_state: State
    next_segment: int


@dataclass(frozen=True, eq=False)
class DocumentStream:
    """Training text as a stream.

    Attributes:
        window_documents: documents of a window.
        keeps_order: whether they stay in the order of the source.
        head_lengths: int64, tokens of the segments at the head of the stream; they size the microbatches.
    """

    reader: RetryingReader
    encoder: Encoder
    window_documents: int
    keeps_order: bool
    head_lengths: NDArray[np.int64]

    @property
    def statistics(self) -> LengthStatistics:
        """Statistics of the segment lengths at the head of the stream."""
        return LengthStatistics.of(self.head_lengths)

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return the segment lengths at the head of the stream."""
        return self.head_lengths

    @property
    def label(self) -> str:
        """Name for messages."""
        return self.reader.source.label

    def read_window(self, state: State | None, first_segment: int) -> StreamWindow | None:
        """Read the window that starts at `state`; None after the end of the stream.

        Raises DAT010 if reading keeps failing, DAT012 for a document that is too long.
        """
        rows, next_state = self.reader.read(state, self.window_documents)
        while rows:
            encoded, _ = _encode(rows, self.encoder, self.reader)
            if encoded:
                store = TokenStore.of(encoded, self.encoder.columns)
                return StreamWindow(store, next_state, first_segment + len(store))
            rows, next_state = self.reader.read(next_state, self.window_documents)
        return None


def open_stream(
    source: TextSource, examples: Examples, tokenizer: TokenizerBundle, config: DatasetConfig
) -> tuple[DocumentStream, Counts]:
    """Open a stream and measure its head. Raises DAT004 if the head has no text."""
    reader, encoder = RetryingReader.of(source, config), examples.encoder(tokenizer)
    rows, _ = reader.read(None, HEAD_DOCUMENTS)
    encoded, counts = _encode(rows, encoder, reader)
    if not encoded:
        raise ProjectError(
            "DAT004",
            f"the first {len(rows):,} documents have no text to train on",
            "check dataset.text_column, dataset.min_length and dataset.long_documents",
            source.label,
        )
    examples.check(f"{source.label}, the first {len(rows):,} documents", counts)
    window = config.shuffle_buffer_size or ORDERED_WINDOW_DOCUMENTS
    lengths = np.concatenate([batch.lengths for batch in encoded]).astype(np.int64)
    return DocumentStream(reader, encoder, window, config.shuffle_buffer_size == 0, lengths), counts


def _encode(rows: list[Row], encoder: Encoder, reader: RetryingReader) -> tuple[list[Encoded], Counts]:
    """Encode a window; batches without a segment are left out."""
    counts = Counts()
    batches = []
    for batch in encode_all(rows, encoder, 1, f"{reader.source.label}, a window of {len(rows):,}"):
        reader.sign()
        counts.add(batch.counts)
        if batch.counts.segments:
            batches.append(batch)
    return batches, counts
