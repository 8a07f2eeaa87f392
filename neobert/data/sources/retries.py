"""Retries of reads that fail temporarily, with exponential backoff."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from neobert.config.schema import DatasetConfig
from neobert.data.sources.readers import Reader, State, TextSource
from neobert.data.sources.rows import Row, count_characters
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError, first_line
from neobert.plurals import counted

CHUNK_DOCUMENTS = 1024
CHUNK_CHARACTERS = 1 << 23
# Libraries that report a lost connection with errors of their own, outside OSError.
_NETWORK_LIBRARIES = {
    "aiobotocore", "aiohttp", "botocore", "fsspec", "httpcore", "httpcore2", "httpx", "httpx2",
    "huggingface_hub", "requests", "urllib3",
}  # fmt: skip
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError)


@dataclass(eq=False)
class RetryingReader:
    """Reads documents of a source chunk by chunk; a chunk that fails is read again from its start.

    Consecutive chunks are read with the same reader, because opening a source in the middle may require
    reading everything before.

    Attributes:
        retries: maximum number of retries per chunk.
        first_pause_s: pause before the first retry; doubles with each retry, up to `longest_pause_s`.
        num_retries: number of retries since this reader was created.
        last_progress_s: `time.monotonic()` of the last progress, or of the end of a pause before a retry.
    """

    source: TextSource
    retries: int
    first_pause_s: float
    longest_pause_s: float
    sleep: Callable[[float], None] = time.sleep
    num_retries: int = 0
    last_progress_s: float = field(default_factory=time.monotonic)
    _live: tuple[State, Reader] | None = field(default=None, init=False)

    @classmethod
    def from_config(cls, source: TextSource, config: DatasetConfig) -> RetryingReader:
        """Return a reader of the source with the retry settings of the config."""
        return cls(
            source,
            config.streaming_read_retries,
            config.streaming_read_retry_backoff_seconds,
            config.streaming_read_retry_max_backoff_seconds,
        )

    def __iter__(self) -> Iterator[Row]:
        state = None
        while True:
            rows, state = self.read(state, CHUNK_DOCUMENTS, CHUNK_CHARACTERS)
            if not rows:
                return
            yield from rows

    def read(
        self, state: State | None, num_documents: int, num_characters: float = math.inf
    ) -> tuple[list[Row], State]:
        """Return up to `num_documents` documents starting at `state`, and the state after them.

        Reading stops after the document with which the total reaches `num_characters`.
        Raises DAT010 if reading keeps failing, DAT001 for an error that a retry cannot fix.
        """
        attempt = 0
        while True:
            try:
                return self._read_chunk(self._reader_at(state), num_documents, num_characters)
            except ProjectError:
                raise
            except Exception as error:
                if not is_transient(error):
                    raise ProjectError(
                        "DAT001",
                        f"cannot be read: {type(error).__name__}: {first_line(error)}",
                        "check the files of the dataset, or prepare it on a local disk",
                        self.source.label,
                    ) from error
                attempt += 1
                self._pause_before_retry(attempt, error)

    def _reader_at(self, state: State | None) -> Reader:
        """Return the open reader if it is at `state`, else open another."""
        live, self._live = self._live, None
        return live[1] if live is not None and live[0] == state else self.source.open(state)

    def _read_chunk(
        self, reader: Reader, num_documents: int, num_characters: float
    ) -> tuple[list[Row], State]:
        rows: list[Row] = []
        size = 0
        for row in islice(reader, num_documents):
            rows.append(row)
            size += count_characters(row)
            self.record_progress()
            if size >= num_characters:
                break
        state = reader.state()
        self._live = (copy.deepcopy(state), reader)
        return rows, state

    def record_progress(self) -> None:
        """Set `last_progress_s` to the current time."""
        self.last_progress_s = time.monotonic()

    def _pause_before_retry(self, attempt: int, error: Exception) -> None:
        if attempt > self.retries:
            raise ProjectError(
                "DAT010",
                f"reading failed {counted(attempt, 'time')}, last with {type(error).__name__}: {error}",
                "check the connection and resume; dataset.streaming_read_retries sets the number of retries",
                self.source.label,
                EXIT_TRAINING_FAILED,
            ) from error
        self.num_retries += 1
        pause_s = min(self.first_pause_s * 2 ** (attempt - 1), self.longest_pause_s)
        self.last_progress_s = time.monotonic() + pause_s
        self.sleep(pause_s)


def is_transient(error: Exception) -> bool:
    """Return whether a retry of the same read may succeed."""
    if isinstance(error, OSError):
        return not isinstance(error, _PERMANENT)
    return type(error).__module__.partition(".")[0] in _NETWORK_LIBRARIES
