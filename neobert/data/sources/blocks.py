"""Blocks of a source, which are prepared independently: files, and row groups of Parquet files."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from neobert.config.text_formats import PARQUET
from neobert.data.sources.parts import ConcatenatedSource, HashShare, SlicedSource
from neobert.data.sources.readers import FileSource, IndexedSource, TextSource
from neobert.data.sources.splits import SplitSlice
from neobert.data.sources.text_files import read_rows, row_groups

MAX_INDEXED_BLOCKS, MIN_INDEXED_ROWS = 1 << 14, 1 << 10
ROW_BYTES = 1 << 10
"""Assumed size of a row of text that has no files."""


@dataclass(frozen=True)
class Block:
    """Documents of a source, in their order.

    Attributes:
        key: name that is unique in the source.
        size: approximate size in bytes, for a fair assignment.
        corpus: index of its corpus in a mixture.
    """

    key: str
    size: float
    source: TextSource
    corpus: int = 0


def split_into_blocks(source: TextSource) -> list[Block]:
    """Return the blocks of a source in its order; together they hold each document once."""
    if isinstance(source, ConcatenatedSource):
        return [
            replace(block, key=f"{corpus}: {block.key}", corpus=corpus)
            for corpus, each in enumerate(source.parts)
            for block in split_into_blocks(each)
        ]
    if isinstance(source, HashShare):
        share = source.share if source.is_evaluation else 1 - source.share
        return [
            replace(block, size=block.size * share, source=replace(source, source=block.source))
            for block in split_into_blocks(source.source)
        ]
    if isinstance(source, SlicedSource):
        return list(_slice_blocks(source))
    if isinstance(source, FileSource):
        return [block for index in range(len(source.files)) for block in _file_blocks(source, index)]
    assert isinstance(source, IndexedSource)
    return list(_row_blocks(source))


def _file_blocks(source: FileSource, index: int) -> Iterator[Block]:
    path, name = source.files[index], source.names[index]
    alone = replace(source, label=str(path), files=(path,), names=(name,), known_count=None)
    groups = row_groups(path) if path.suffix.lower() == PARQUET else []
    if len(groups) < 2:
        yield Block(name, groups[0].size if groups else path.stat().st_size, alone)
        return
    for number, group in enumerate(groups):
        part = replace(
            alone,
            label=f"{path}, row group {number}",
            read=partial(read_rows, row_group=number),
            known_count=group.rows,
        )
        yield Block(f"{name}, row group {number}", group.size, part)


def _row_blocks(source: IndexedSource) -> Iterator[Block]:
    total = source.size()
    rows = max(MIN_INDEXED_ROWS, -(-total // MAX_INDEXED_BLOCKS))
    for start in range(0, total, rows):
        stop = min(start + rows, total)
        key = f"rows {start} to {stop}"
        yield Block(key, (stop - start) * ROW_BYTES, SlicedSource(source, _build_slice(start, stop)))


def _build_slice(start: int, stop: int | None) -> SplitSlice:
    return SplitSlice("", (start, False) if start else None, None if stop is None else (stop, False))


def _slice_blocks(part: SlicedSource) -> Iterator[Block]:
    """Yield the blocks of a slice. Documents are counted only up to its last bound."""
    last_bound, passed = max(part.start, part.stop or 0), 0
    for block in split_into_blocks(part.source):
        left = last_bound - passed
        if left <= 0 and part.stop is not None:
            return
        held = _count_documents(block.source, left) if left > 0 else 0
        start = max(0, part.start - passed) if left > 0 else 0
        ends_inside = part.stop is not None and held == left
        passed += held
        if left > 0 and start >= held and held < left:
            continue  # before the slice
        stop = left if ends_inside else None
        if start == 0 and stop is None:
            yield block
        else:
            cut = SlicedSource(block.source, _build_slice(start, stop))
            yield replace(block, source=cut, size=0 if ends_inside else block.size)


def _count_documents(source: TextSource, max_documents: int) -> int:
    if isinstance(source, FileSource) and source.known_count is not None:
        return min(max_documents, source.known_count)
    if isinstance(source, SlicedSource) and isinstance(source.source, IndexedSource):
        return min(max_documents, source.count() or 0)
    return sum(1 for _ in islice(source.open(), max_documents))


def assign_parts(sizes: Sequence[float], num_parts: int) -> list[int]:
    """Return the part of each block, from 0: the largest block first, each to the smallest part so far."""
    parts = [(0.0, 0, number) for number in range(num_parts)]
    assigned = [0] * len(sizes)
    for block in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        load, count, number = heapq.heappop(parts)
        assigned[block] = number
        heapq.heappush(parts, (load + sizes[block], count + 1, number))
    return assigned
