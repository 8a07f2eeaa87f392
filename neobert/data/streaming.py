"""Text that is tokenised while training: windows of documents, read in order, resumed to the bit.

Every rank reads the whole stream and keeps its share of the microbatches: simple and exact, at the cost of each rank
tokenising everything. A window is `dataset.shuffle_buffer_size` documents, shuffled and packed together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from neobert.config.schema import DatasetConfig
from neobert.data.encoding import Counts, Encoded, SegmentEncoder, encode_all
from neobert.data.readers import Reader, State, TextSource
from neobert.data.store import LengthStatistics, TokenStore
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError

ORDERED_WINDOW_DOCUMENTS = 1024
# Libraries that report a lost connection with errors of their own, outside OSError.
_NETWORK_LIBRARIES = {"aiohttp", "fsspec", "httpcore", "httpx", "huggingface_hub", "requests", "urllib3"}
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts after a failed read, and the pauses between them: doubling, up to a longest one."""

    retries: int
    first_pause_s: float
    longest_pause_s: float

    def pause_s(self, attempt: int) -> float:
        """Return the pause before attempt number `attempt`, counted from 1."""
        return float(min(self.first_pause_s * 2 ** (attempt - 1), self.longest_pause_s))


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """Documents read and encoded, where the next window starts, and the number of its first segment."""

    store: TokenStore
    next_state: State
    next_segment: int


@dataclass(eq=False)
class DocumentStream:
    """Training text as a stream.

    Attributes:
        statistics: segment lengths at the head of the stream, measured once before training.
        last_sign_s: `time.monotonic()` when the stream last gave a document or began to wait on purpose.
    """

    source: TextSource
    encoder: SegmentEncoder
    window_documents: int
    keeps_order: bool
    retry: RetryPolicy
    statistics: LengthStatistics
    last_sign_s: float = field(default_factory=time.monotonic)

    def read_window(self, state: State | None, first_segment: int) -> StreamWindow | None:
        """Read the window that starts at `state`; None where the stream has ended.

        Raises DAT010 where reading keeps failing, DAT008 for a document that may not be that long.
        """
        texts, next_state = self._read(state)
        while texts:
            encoded = self._encode(texts)
            if encoded:
                store = TokenStore.of(encoded)
                return StreamWindow(store, next_state, first_segment + len(store))
            texts, next_state = self._read(next_state)  # nothing but empty documents: no window
        return None

    def _encode(self, texts: list[str]) -> list[Encoded]:
        batches = encode_all(texts, self.encoder, 1, self.source.label)
        return [batch for batch in batches if len(batch.lengths)]

    def _read(self, state: State | None) -> tuple[list[str], State]:
        """Read the documents of a window, after a failure again from its start."""
        attempt = 0
        while True:
            try:
                reader = self.source.open(state)
                return self._documents(reader), reader.state()
            except Exception as error:
                if not is_transient(error):
                    raise
                attempt += 1
                self._pause(attempt, error)

    def _documents(self, reader: Reader) -> list[str]:
        texts = []
        for text in islice(reader, self.window_documents):
            texts.append(text)
            self.last_sign_s = time.monotonic()
        return texts

    def _pause(self, attempt: int, error: Exception) -> None:
        if attempt > self.retry.retries:
            raise ProjectError(
                "DAT010",
                f"reading failed {attempt} times, last with {type(error).__name__}: {error}",
                "check the connection and resume; dataset.streaming_read_retries sets the attempts",
                self.source.label,
                EXIT_TRAINING_FAILED,
            ) from error
        self.last_sign_s = time.monotonic() + self.retry.pause_s(attempt)
        time.sleep(self.retry.pause_s(attempt))


def is_transient(error: Exception) -> bool:
    """Whether the same read may succeed a moment later."""
    if isinstance(error, OSError):
        return not isinstance(error, _PERMANENT)
    return type(error).__module__.partition(".")[0] in _NETWORK_LIBRARIES


def open_stream(
    source: TextSource, encoder: SegmentEncoder, config: DatasetConfig
) -> tuple[DocumentStream, Counts]:
    """Open a stream and read its first window, which sizes the microbatches. Raises DAT004 where it is empty."""
    keeps_order = config.shuffle_buffer_size == 0
    retry = RetryPolicy(
        config.streaming_read_retries,
        config.streaming_read_retry_backoff_seconds,
        config.streaming_read_retry_max_backoff_seconds,
    )
    window = config.shuffle_buffer_size or ORDERED_WINDOW_DOCUMENTS
    stream = DocumentStream(source, encoder, window, keeps_order, retry, LengthStatistics(0.0, 0.0, 0))
    head, counts = stream_head(stream, window)
    stream.statistics = head.statistics
    return stream, counts


def stream_head(stream: DocumentStream, num_documents: int) -> tuple[TokenStore, Counts]:
    """Encode the first documents of a stream. Raises DAT004 where they have no token."""
    texts: Any = list(islice(stream.source.open(), num_documents))
    batches = list(encode_all(texts, stream.encoder, 1, stream.source.label))
    counts = Counts()
    for batch in batches:
        counts.add(batch.counts)
    if not counts.segments:
        raise ProjectError(
            "DAT004",
            "no document has text to train on",
            "check dataset.text_column and dataset.min_length",
            stream.source.label,
        )
    return TokenStore.of(batches), counts
