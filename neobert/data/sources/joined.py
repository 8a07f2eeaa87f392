"""Several corpora read as one text, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neobert.data.sources.readers import Reader, State, TextSource
from neobert.data.sources.rows import Row, RowFormat


@dataclass(frozen=True)
class Joined:
    """The documents of some sources, one source after the other."""

    parts: tuple[TextSource, ...]

    @property
    def label(self) -> str:
        """Names of the parts."""
        return " + ".join(part.label for part in self.parts)

    @property
    def rows(self) -> RowFormat:
        """The fields of every part's rows; the columns that they are read from may differ."""
        return self.parts[0].rows

    @property
    def column(self) -> str | None:
        """Columns of the parts that have some."""
        return ", ".join(dict.fromkeys(part.column for part in self.parts if part.column)) or None

    def open(self, state: State | None = None) -> Reader:
        """Start reading; parts before the state's are not opened."""
        return _JoinedReader(self.parts, state or {"part": 0, "inner": None})

    def count(self) -> int | None:
        """Count from the parts' counts."""
        counts = [part.count() for part in self.parts]
        return None if None in counts else sum(count for count in counts if count is not None)

    def identity(self) -> Any:
        """List what the parts are."""
        return [part.identity() for part in self.parts]


class _JoinedReader:
    def __init__(self, parts: tuple[TextSource, ...], state: State) -> None:
        self._parts, self._part = parts, state["part"]
        self._reader = parts[self._part].open(state["inner"])

    def __iter__(self) -> Iterator[Row]:
        return self

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


def parts_of(source: TextSource) -> tuple[TextSource, ...]:
    """Return the sources of a joined text; of any other, itself."""
    return source.parts if isinstance(source, Joined) else (source,)
