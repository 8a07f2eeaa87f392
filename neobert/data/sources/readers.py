"""Sources of rows: a fixed order, read from any place on.

A reader's state says where its next document is, as plain JSON; a source opened with it goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from neobert.data.sources.file_digests import DescribeFile, described_by_ends
from neobert.data.sources.rows import Row, RowFormat, characters
from neobert.data.sources.splits import SplitSlice
from neobert.data.sources.text_files import column_of, read_rows

State = dict[str, Any]
_FIRST_FETCH, _MOST_FETCHED = 16, 1024
_FETCH_CHARACTERS = 1 << 23


class Reader(Protocol):
    """An iterator over rows that knows where it is."""

    def __iter__(self) -> Iterator[Row]: ...
    def __next__(self) -> Row: ...
    def state(self) -> State:
        """Say where the next document is."""


class TextSource(Protocol):
    """Documents of one split."""

    @property
    def label(self) -> str:
        """Name for messages."""

    @property
    def rows(self) -> RowFormat:
        """The fields of its rows."""

    @property
    def column(self) -> str | None:
        """Names of the columns that are read; None for text without columns."""

    def open(self, state: State | None = None) -> Reader:
        """Start reading, at the beginning or where a reader's state says."""

    def count(self) -> int | None:
        """Count the documents; None where only the end of the stream would tell."""

    def identity(self) -> Any:
        """Describe the content, JSON-able: equal means the same documents."""


@dataclass(frozen=True)
class FileSource:
    """The documents of some files, one file after the other."""

    label: str
    root: Path
    files: tuple[Path, ...]
    rows: RowFormat
    describe: DescribeFile = described_by_ends

    def open(self, state: State | None = None) -> Reader:
        """Start reading; files before the state's are not opened, documents before it are skipped."""
        return _FileReader(self, state or {"file": 0, "document": 0})

    @property
    def column(self) -> str | None:
        """The column of the first file that has columns, and that file: each file chooses for itself."""
        found = ((column_of(path, self.rows), path.name) for path in self.files)
        return next((f"{column} (in {name})" for column, name in found if column is not None), None)

    def count(self) -> int:
        """Count by reading everything once."""
        return self._count

    @cached_property
    def _count(self) -> int:
        return sum(1 for path in self.files for _ in read_rows(path, self.rows))

    def identity(self) -> Any:
        """List the names of the files, each with its description."""
        return [[path.relative_to(self.root).as_posix(), *self.describe(path)] for path in self.files]


class _FileReader:
    def __init__(self, source: FileSource, state: State) -> None:
        self._source = source
        self._file, self._document = state["file"], state["document"]
        self._rows = self._open_file(self._document)

    def _open_file(self, skip: int) -> Iterator[Row]:
        if self._file >= len(self._source.files):
            return iter(())
        return islice(read_rows(self._source.files[self._file], self._source.rows), skip, None)

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        while self._file < len(self._source.files):
            for row in self._rows:
                self._document += 1
                return row
            self._file, self._document = self._file + 1, 0
            self._rows = self._open_file(0)
        raise StopIteration

    def state(self) -> State:
        return {"file": self._file, "document": self._document}


@dataclass(frozen=True)
class IndexedSource:
    """Documents behind an index: `fetch(start, stop)` returns some of them."""

    label: str
    fetch: Callable[[int, int], Sequence[Row]]
    size: Callable[[], int]
    identity: Callable[[], Any]
    rows: RowFormat
    column: str | None = None

    def open(self, state: State | None = None) -> Reader:
        """Start reading at any document at no cost."""
        return _IndexedReader(self, (state or {"document": 0})["document"])

    def count(self) -> int:
        """Count without reading."""
        return self.size()


class _IndexedReader:
    def __init__(self, source: IndexedSource, place: int) -> None:
        self._source, self._place = source, place
        self._start = place
        self._chunk: Sequence[Row] = ()
        self._num_fetched = _FIRST_FETCH

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        if self._place >= self._source.size():
            raise StopIteration
        if self._place >= self._start + len(self._chunk):
            self._fetch()
        self._place += 1
        return self._chunk[self._place - 1 - self._start]

    def _fetch(self) -> None:
        """Fetch the next documents: `_FETCH_CHARACTERS` of them if they are as long as the last ones."""
        stop = min(self._place + self._num_fetched, self._source.size())
        self._start, self._chunk = self._place, self._source.fetch(self._place, stop)
        fitting = _FETCH_CHARACTERS * len(self._chunk) // max(1, sum(map(characters, self._chunk)))
        self._num_fetched = max(1, min(_MOST_FETCHED, fitting))

    def state(self) -> State:
        return {"document": self._place}


@dataclass(frozen=True)
class Part:
    """A slice of a source. What needs the source's length is resolved when documents are asked for."""

    source: TextSource
    wanted: SplitSlice

    @property
    def label(self) -> str:
        """Name with the bounds."""
        return f"{self.source.label}{self.wanted.bounds()}"

    @property
    def rows(self) -> RowFormat:
        """The source's fields."""
        return self.source.rows

    @property
    def column(self) -> str | None:
        """The source's columns."""
        return self.source.column

    @cached_property
    def _bounds(self) -> tuple[int, int | None]:
        return self.wanted.resolve(self.source.count() if self.wanted.needs_total else None)

    @property
    def start(self) -> int:
        """Number of the first document."""
        return self._bounds[0]

    @property
    def stop(self) -> int | None:
        """Number behind the last document; None: the source's end."""
        return self._bounds[1]

    def open(self, state: State | None = None) -> Reader:
        """Start reading; what comes before the part is read and skipped once."""
        return _PartReader(self, state)

    def count(self) -> int | None:
        """Count from the whole source's count."""
        total = self.source.count()
        if total is None:
            return None
        return max(0, (total if self.stop is None else min(self.stop, total)) - self.start)

    def identity(self) -> Any:
        """Describe the source and the bounds."""
        return {"of": self.source.identity(), "slice": self.wanted.bounds()}


class _PartReader:
    def __init__(self, part: Part, state: State | None) -> None:
        self._part = part
        self._inner = part.source.open(state["inner"] if state else None)
        self._place = state["place"] if state else 0

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        while self._place < self._part.start:
            next(self._inner)
            self._place += 1
        if self._part.stop is not None and self._place >= self._part.stop:
            raise StopIteration
        document = next(self._inner)
        self._place += 1
        return document

    def state(self) -> State:
        return {"inner": self._inner.state(), "place": self._place}


@dataclass(frozen=True)
class HashShare:
    """The share of a source whose text hashes below `share`, or the rest of it.

    A function of the text alone: no seed, no order, and copies of a document always fall on the same side.
    """

    source: TextSource
    share: float
    is_evaluation: bool

    @property
    def label(self) -> str:
        """Name with the share."""
        return f"{self.source.label} ({'' if self.is_evaluation else 'all but '}{self.share:.2%} by hash)"

    @property
    def rows(self) -> RowFormat:
        """The source's fields."""
        return self.source.rows

    @property
    def column(self) -> str | None:
        """The source's columns."""
        return self.source.column

    def open(self, state: State | None = None) -> Reader:
        """Start reading."""
        return _ShareReader(self, self.source.open(state))

    def count(self) -> int | None:
        """Give no count: only the texts would tell."""
        return None

    def identity(self) -> Any:
        """Describe the source, the share and the side."""
        return {"of": self.source.identity(), "share": self.share, "is_evaluation": self.is_evaluation}

    def takes(self, row: Row) -> bool:
        """Decide whether a row is on this side."""
        text = self.source.rows.key(row)
        word = int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        return (word < self.share * 2**64) == self.is_evaluation


class _ShareReader:
    def __init__(self, share: HashShare, inner: Reader) -> None:
        self._share, self._inner = share, inner

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return next(row for row in self._inner if self._share.takes(row))

    def state(self) -> State:
        return self._inner.state()
