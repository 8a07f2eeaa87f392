"""Sources of rows in a fixed order, readable from any document.

A source that is opened with a reader's state continues at the reader's next document.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from neobert.data.sources.file_digests import DescribeFile, describe_by_ends
from neobert.data.sources.rows import Row, RowFormat, count_characters
from neobert.data.sources.text_files import file_columns, read_rows

State = dict[str, Any]
_FIRST_FETCH, _MAX_FETCHED = 16, 1024
_FETCH_CHARACTERS = 1 << 23


class Reader(Iterator[Row], ABC):
    """Iterator over rows with a position that can be saved."""

    @abstractmethod
    def state(self) -> State:
        """Return the position of the next document as a JSON-serializable dict."""


class TextSource(Protocol):
    """Interface of a source: the documents of one split."""

    @property
    def label(self) -> str:
        """Name of the source, for messages."""

    @property
    def rows(self) -> RowFormat:
        """Fields of the source's rows."""

    @property
    def column(self) -> str | None:
        """Names of the columns that are read; None for text without columns."""

    def open(self, state: State | None = None) -> Reader:
        """Start reading at the beginning, or at a position that `Reader.state` returned."""

    def count(self) -> int | None:
        """Count the documents; None for a stream, whose length is unknown."""

    def identity(self) -> Any:
        """Return a JSON-serializable description of the content; equal descriptions mean equal documents."""


@dataclass(eq=False)
class FileSource:
    """Documents of several files, read in order; `names` do not depend on the location of the files.

    `known_count` is the number of documents once all were read, else None; `read` yields the rows of a file.
    """

    label: str
    files: tuple[Path, ...]
    names: tuple[str, ...]
    rows: RowFormat
    describe: DescribeFile = describe_by_ends
    known_count: int | None = None
    read: Callable[[Path, RowFormat], Iterator[Row]] = read_rows

    def open(self, state: State | None = None) -> Reader:
        """Start reading at `state`, without opening earlier files; earlier documents are read and skipped."""
        return _FileReader(self, state or {"file": 0, "document": 0})

    @property
    def column(self) -> str | None:
        """Columns of the first file that has columns, with its name; None if no file has columns."""
        found = ((file_columns(path, self.rows), path.name) for path in self.files)
        return next((f"{column} (in {name})" for column, name in found if column is not None), None)

    def count(self) -> int:
        """Count the documents by reading all files once."""
        if self.known_count is None:
            self.known_count = sum(1 for path in self.files for _ in self.read(path, self.rows))
        return self.known_count

    def identity(self) -> Any:
        """Return the names of the files, each with the values that identify its content."""
        return [[name, *self.describe(path)] for name, path in zip(self.names, self.files, strict=True)]


class _FileReader(Reader):
    def __init__(self, source: FileSource, state: State) -> None:
        self._source = source
        self._file, self._document = state["file"], state["document"]
        self._is_from_start, self._num_read = not (self._file or self._document), 0
        self._rows = self._open_file(self._document)

    def _open_file(self, skip: int) -> Iterator[Row]:
        if self._file >= len(self._source.files):
            return iter(())
        return islice(self._source.read(self._source.files[self._file], self._source.rows), skip, None)

    def __next__(self) -> Row:
        while self._file < len(self._source.files):
            for row in self._rows:
                self._document += 1
                self._num_read += 1
                return row
            self._file, self._document = self._file + 1, 0
            self._rows = self._open_file(0)
        if self._is_from_start:
            self._source.known_count = self._num_read
        raise StopIteration

    def state(self) -> State:
        return {"file": self._file, "document": self._document}


@dataclass(frozen=True)
class IndexedSource:
    """Documents with random access: `fetch(start, stop)` returns a range of them."""

    label: str
    fetch: Callable[[int, int], Sequence[Row]]
    size: Callable[[], int]
    identity: Callable[[], Any]
    rows: RowFormat
    column: str | None = None

    def open(self, state: State | None = None) -> Reader:
        """Start reading at the beginning or at the position of a reader's state, without skipping."""
        return _IndexedReader(self, (state or {"document": 0})["document"])

    def count(self) -> int:
        """Return the number of documents, without reading them."""
        return self.size()


class _IndexedReader(Reader):
    def __init__(self, source: IndexedSource, position: int) -> None:
        self._source, self._place = source, position
        self._start = position
        self._chunk: Sequence[Row] = ()
        self._num_fetched = _FIRST_FETCH

    def __next__(self) -> Row:
        if self._place >= self._source.size():
            raise StopIteration
        if self._place >= self._start + len(self._chunk):
            self._fetch_chunk()
        self._place += 1
        return self._chunk[self._place - 1 - self._start]

    def _fetch_chunk(self) -> None:
        """Fetch the next chunk; size the one after it to `_FETCH_CHARACTERS` by the mean document length."""
        stop = min(self._place + self._num_fetched, self._source.size())
        self._start, self._chunk = self._place, self._source.fetch(self._place, stop)
        fitting = _FETCH_CHARACTERS * len(self._chunk) // max(1, sum(map(count_characters, self._chunk)))
        self._num_fetched = max(1, min(_MAX_FETCHED, fitting))

    def state(self) -> State:
        return {"document": self._place}
