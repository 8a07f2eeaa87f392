"""Text that is tokenized during training, in windows of documents; a resume is bit-exact.

Every rank reads and tokenizes the whole stream and keeps its own microbatches: simple and exact, but each
rank repeats the work. A window is `dataset.shuffle_buffer_size` documents that are held in memory, shuffled
and packed together.
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
from neobert.data.store.segment_store import LengthStatistics
from neobert.data.store.token_store import TokenStore
from neobert.data.tokenize.encoding import Counts, Encoded, Encoder
from neobert.data.tokenize.encoding_pool import encode_all
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.plurals import counted

ORDERED_WINDOW_DOCUMENTS = 1024
HEAD_DOCUMENTS = 2048


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """Encoded documents of a window, and reader state and first segment number of the next one."""

    store: TokenStore
    next_state: State
    next_segment: int


@dataclass(frozen=True, eq=False)
class DocumentStream:
    """Training text as a stream.

    Attributes:
        window_documents: number of documents per window.
        keeps_order: whether documents stay in the order of the source, without shuffling.
        head_lengths: int64 [n], lengths in tokens of the first examples of the stream, from which the
            microbatch shape is derived.
    """

    reader: RetryingReader
    encoder: Encoder
    window_documents: int
    keeps_order: bool
    head_lengths: NDArray[np.int64]

    @property
    def statistics(self) -> LengthStatistics:
        """Statistics of the lengths of examples at the head of the stream."""
        return LengthStatistics.from_lengths(self.head_lengths)

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return the lengths in tokens of the examples at the head of the stream, int64 [n]."""
        return self.head_lengths

    @property
    def label(self) -> str:
        """Name of the source, for messages."""
        return self.reader.source.label

    def read_window(self, state: State | None, first_segment: int) -> StreamWindow | None:
        """Read the window at `state` (None: the start); return None at the end of the stream.

        Raises DAT010 if reading keeps failing, DAT012 for a document that is too long.
        """
        rows, next_state = self.reader.read(state, self.window_documents)
        while rows:
            encoded, _ = _encode_rows(rows, self.encoder, self.reader)
            if encoded:
                store = TokenStore.from_batches(encoded, self.encoder.columns)
                return StreamWindow(store, next_state, first_segment + store.num_segments)
            rows, next_state = self.reader.read(next_state, self.window_documents)
        return None


def open_stream(
    source: TextSource, examples: Examples, tokenizer: TokenizerBundle, config: DatasetConfig
) -> tuple[DocumentStream, Counts]:
    """Open a stream and encode its first `HEAD_DOCUMENTS` documents to measure segment lengths.

    Returns the stream and the counts of these documents. Raises DAT004 if they contain no text.
    """
    reader, encoder = RetryingReader.from_config(source, config), examples.encoder(tokenizer)
    rows, _ = reader.read(None, HEAD_DOCUMENTS)
    encoded, counts = _encode_rows(rows, encoder, reader)
    if not encoded:
        raise ProjectError(
            "DAT004",
            f"no text to train on in the first {counted(len(rows), 'document')}",
            "check dataset.text_column, dataset.min_length and dataset.long_documents",
            source.label,
        )
    examples.check(f"{source.label}, the first {counted(len(rows), 'document')}", counts)
    window = config.shuffle_buffer_size or ORDERED_WINDOW_DOCUMENTS
    lengths = np.concatenate([batch.example_lengths for batch in encoded]).astype(np.int64)
    return DocumentStream(reader, encoder, window, config.shuffle_buffer_size == 0, lengths), counts


def _encode_rows(rows: list[Row], encoder: Encoder, reader: RetryingReader) -> tuple[list[Encoded], Counts]:
    """Encode rows; return the batches with at least one segment, and the counts of all rows."""
    counts = Counts()
    batches = []
    label = f"{reader.source.label}, a window of {counted(len(rows), 'document')}"
    for batch in encode_all(rows, encoder, 1, label):
        reader.record_progress()
        counts.add(batch.counts)
        if batch.counts.segments:
            batches.append(batch)
    return batches, counts
