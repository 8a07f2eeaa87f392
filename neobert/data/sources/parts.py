"""Derived sources: a slice, a share by hash, and a concatenation of sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neobert.data.sources.readers import FileSource, IndexedSource, Reader, State, TextSource
from neobert.data.sources.rows import Row, RowFormat, text_digest
from neobert.data.sources.splits import SplitSlice


@dataclass(frozen=True)
class _DerivedSource:
    """Base class of sources that select documents of another source."""

    source: TextSource

    @property
    def rows(self) -> RowFormat:
        return self.source.rows

    @property
    def column(self) -> str | None:
        return self.source.column


@dataclass(frozen=True)
class SlicedSource(_DerivedSource):
    """A slice of a source. Bounds that need the source's length are resolved at the first read."""

    wanted: SplitSlice

    @property
    def label(self) -> str:
        """Label of the source with the slice, such as `[:10%]`."""
        return f"{self.source.label}{self.wanted.bounds()}"

    @cached_property
    def _resolved_bounds(self) -> tuple[int, int | None]:
        return self.wanted.resolve(self.source.count() if self.wanted.needs_total else None)

    @property
    def start(self) -> int:
        """Index of the first document."""
        return self._resolved_bounds[0]

    @property
    def stop(self) -> int | None:
        """Index after the last document; None for the end of the source."""
        return self._resolved_bounds[1]

    def open(self, state: State | None = None) -> Reader:
        """Start reading at the slice or at `state`; documents before the slice are read and skipped."""
        return _SliceReader(self, state)

    def count(self) -> int | None:
        """Return the number of documents in the slice; None if the source cannot be counted."""
        total = self.source.count()
        if total is None:
            return None
        return max(0, (total if self.stop is None else min(self.stop, total)) - self.start)

    def identity(self) -> Any:
        """Return the identity of the source and the bounds of the slice."""
        return {"of": self.source.identity(), "slice": self.wanted.bounds()}


class _SliceReader(Reader):
    def __init__(self, part: SlicedSource, state: State | None) -> None:
        self._part = part
        self._inner = part.source.open(state["inner"] if state else None)
        self._place = state["place"] if state else 0

    def __next__(self) -> Row:
        while self._place < self._part.start:
            next(self._inner)
            self._place += 1
        if self._part.stop is not None and self._place >= self._part.stop:
            raise StopIteration
        row = next(self._inner)
        self._place += 1
        return row

    def state(self) -> State:
        return {"inner": self._inner.state(), "place": self._place}


@dataclass(frozen=True)
class HashShare(_DerivedSource):
    """Documents whose text hash, scaled to [0, 1), is below `share`, or all others if not `is_evaluation`.

    The assignment depends on the text alone, not on seed or order: copies of a document are in the same part.
    """

    share: float
    is_evaluation: bool

    @property
    def label(self) -> str:
        """Label of the source with the share."""
        return f"{self.source.label} ({'' if self.is_evaluation else 'all but '}{self.share:.2%} by hash)"

    def open(self, state: State | None = None) -> Reader:
        """Start reading at the beginning or at `state`."""
        return _ShareReader(self, self.source.open(state))

    def count(self) -> int | None:
        """Return None: counting would require reading the texts."""
        return None

    def identity(self) -> Any:
        """Return the source's identity with `share` and whether this is the evaluation part."""
        return {"of": self.source.identity(), "share": self.share, "is_evaluation": self.is_evaluation}

    def includes(self, row: Row) -> bool:
        """Return whether a row belongs to this part."""
        word = int.from_bytes(text_digest(self.rows.key(row)), "big")
        return (word < self.share * 2**64) == self.is_evaluation


class _ShareReader(Reader):
    def __init__(self, share: HashShare, inner: Reader) -> None:
        self._share, self._inner = share, inner

    def __next__(self) -> Row:
        return next(row for row in self._inner if self._share.includes(row))

    def state(self) -> State:
        return self._inner.state()


@dataclass(frozen=True)
class ConcatenatedSource:
    """Concatenation of sources."""

    parts: tuple[TextSource, ...]

    @property
    def label(self) -> str:
        """Labels of the parts, joined with `+`."""
        return " + ".join(part.label for part in self.parts)

    @property
    def rows(self) -> RowFormat:
        """Row format of the first part; all parts have its fields, but their columns may differ."""
        return self.parts[0].rows

    @property
    def column(self) -> str | None:
        """Columns of all parts, comma-separated; None if no part has columns."""
        return ", ".join(dict.fromkeys(part.column for part in self.parts if part.column)) or None

    def open(self, state: State | None = None) -> Reader:
        """Start reading at the beginning or at `state`, without opening earlier parts."""
        return _JoinedReader(self.parts, state or {"part": 0, "inner": None})

    def count(self) -> int | None:
        """Return the number of documents of all parts; None if a part cannot be counted."""
        counts = [part.count() for part in self.parts]
        return None if None in counts else sum(count for count in counts if count is not None)

    def identity(self) -> Any:
        """Return the list of the parts' identities; see `TextSource.identity`."""
        return [part.identity() for part in self.parts]


class _JoinedReader(Reader):
    def __init__(self, parts: Sequence[TextSource], state: State) -> None:
        self._parts, self._part = parts, state["part"]
        self._reader = parts[self._part].open(state["inner"])

    def __next__(self) -> Row:
        while True:
            for row in self._reader:
                return row
            if self._part + 1 == len(self._parts):
                raise StopIteration
            self._part += 1
            self._reader = self._parts[self._part].open()

    def state(self) -> State:
        return {"part": self._part, "inner": self._reader.state()}


def component_sources(source: TextSource) -> tuple[TextSource, ...]:
    """Return the sources of a joined source; for any other source, the source itself."""
    return source.parts if isinstance(source, ConcatenatedSource) else (source,)


def known_count(source: TextSource) -> int | None:
    """Count the documents of a source without reading them; None if that is not possible."""
    if isinstance(source, IndexedSource):
        return source.count()
    if isinstance(source, FileSource):
        return source.known_count
    if isinstance(source, ConcatenatedSource):
        counts = [known_count(part) for part in source.parts]
        return None if None in counts else sum(count for count in counts if count is not None)
    return (
        source.count()
        if isinstance(source, SlicedSource) and known_count(source.source) is not None
        else None
    )
