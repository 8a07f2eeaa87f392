"""Prepared text, opened: one store, or segments of several in one order (text prepared in parts).

Shapes: n examples, B blocks.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.store.checksums import manifest_files
from neobert.data.store.segment_store import LengthStatistics, Segments, SegmentStore, positions_in_segments
from neobert.data.store.token_store import TokenStore, open_split
from neobert.errors import ProjectError

OTHER_FILES = 512
"""Open files of a process besides its text."""

Ints = NDArray[np.int64]


def open_text(folder: Path, manifest: dict[str, Any], split: str) -> SegmentStore:
    """Map a split into memory.

    Raises DAT001 for a missing file or a file of the wrong size, DAT009 if the process may not open that many
    files.
    """
    described = manifest["splits"][split]
    if "parts" not in manifest:
        return open_split(folder, split, described)
    parts = [(part["folder"], part["splits"][split]) for part in manifest["parts"]]
    _allow_open_files(len(manifest_files(manifest)))
    stores = {
        number: open_split(folder / name, split, described | sizes)
        for number, (name, sizes) in enumerate(parts)
        if sizes["segments"]
    }
    blocks = {name: np.array(values, dtype=np.int64) for name, values in described["blocks"].items()}
    has_text = blocks["segments"] > 0
    table = BlockTable(**{name: values[has_text] for name, values in blocks.items()})
    positions = np.searchsorted([*stores], table.part)
    return JoinedStore(
        [*stores.values()], replace(table, part=positions), LengthStatistics(**described["lengths"])
    )


def _allow_open_files(number: int) -> None:
    """Increase this process's limit on open files: each mapped file stays open.

    Raises DAT009 if the hard limit is too low.
    """
    needed = number + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ProjectError(
                "DAT009",
                f"the text has {number:,} files, but this process may open only {hard:,} (ulimit -Hn)",
                f"raise the limit to {needed:,}, or prepare the text in fewer parts",
                "dataset.cache_dir",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Blocks in the order of the text, int64 [B] each.

    Attributes:
        part: store that holds the block.
        first_example, first_segment: position of the block in its store.
        examples, segments: sizes of the block.
    """

    part: Ints
    first_example: Ints
    first_segment: Ints
    examples: Ints
    segments: Ints


class JoinedStore(SegmentStore):
    """Stores whose examples are numbered by their position in the text, not by store."""

    def __init__(self, parts: Sequence[TokenStore], blocks: BlockTable, statistics: LengthStatistics) -> None:
        self._parts, self._blocks, self.statistics = tuple(parts), blocks, statistics
        self._examples = np.concatenate(([0], np.cumsum(blocks.examples))).astype(np.int64)
        # What is added to the number of a segment in its store: its number in the text.
        segments = np.concatenate(([0], np.cumsum(blocks.segments))).astype(np.int64)
        self._num_segments, self._segments = int(segments[-1]), segments[:-1]
        self._shifts = self._segments - blocks.first_segment

    def __len__(self) -> int:
        return int(self._examples[-1])

    @property
    def num_segments(self) -> int:
        """Number of segments in all examples."""
        return self._num_segments

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all segments."""
        return sum(part.num_tokens for part in self._parts)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the side columns."""
        return self._parts[0].column_names

    def column(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield the values of a side column, store by store."""
        for part in self._parts:
            yield from part.column(name)

    def highest_id(self) -> int:
        """Read all tokens and return the largest id."""
        return max(part.highest_id() for part in self._parts)

    def lengths(self, examples: Ints) -> Ints:
        """Return the lengths of these examples, in tokens."""
        blocks, local = self._locate_examples(examples)
        lengths = np.empty(len(examples), dtype=np.int64)
        for part, positions in _group_by_part(self._blocks.part[blocks]):
            lengths[positions] = self._parts[part].lengths(local[positions])
        return lengths

    def gather(self, examples: Ints, sample_offset: int | Ints = 0) -> Segments:
        """Read the segments of these examples; see `SegmentStore.gather`."""
        blocks, local = self._locate_examples(examples)
        offsets = self._shifts[blocks] + sample_offset
        groups = _group_by_part(self._blocks.part[blocks])
        read = [self._parts[part].gather(local[positions], offsets[positions]) for part, positions in groups]
        if len(read) == 1:
            return read[0]
        if not read:
            return self._parts[0].gather(examples)
        return _join_in_order(read, [positions for _, positions in groups], self._parts[0].token_columns)

    def segment(self, number: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens of one segment."""
        block = int(np.searchsorted(self._segments, number, side="right")) - 1
        store = self._parts[int(self._blocks.part[block])]
        return store.segment(number - int(self._shifts[block]))

    def example(self, number: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens of one example."""
        blocks, local = self._locate_examples(np.array([number]))
        store = self._parts[int(self._blocks.part[blocks[0]])]
        return store.example(int(local[0]))

    def _locate_examples(self, examples: Ints) -> tuple[Ints, Ints]:
        """Return the block of each example, and its number in the store of the block."""
        # The last of equal starts: a block without examples holds none.
        blocks = np.searchsorted(self._examples, examples, side="right") - 1
        return blocks, examples - self._examples[blocks] + self._blocks.first_example[blocks]


def _group_by_part(parts: Ints) -> list[tuple[int, Ints]]:
    """Return (part, its indices in `parts` in ascending order) for each part."""
    order = np.argsort(parts, kind="stable")
    numbers, firsts = np.unique(parts[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True)) if len(parts) else []


def _join_in_order(
    read: Sequence[Segments], indices: Sequence[Ints], token_columns: frozenset[str]
) -> Segments:
    """Join segments that were read store by store, in the order of their examples.

    `indices` are the positions in that order of the examples in each item of `read`.
    """
    sizes_read = np.concatenate(
        [np.bincount(each.groups, minlength=len(own)) for each, own in zip(read, indices, strict=True)]
    )
    order = np.argsort(np.concatenate(indices))
    sizes = sizes_read[order]
    segments = np.repeat((np.cumsum(sizes_read) - sizes_read)[order], sizes) + positions_in_segments(sizes)
    lengths_read = np.concatenate([each.lengths for each in read])
    lengths = lengths_read[segments]
    positions = positions_in_segments(lengths)
    tokens = np.repeat((np.cumsum(lengths_read) - lengths_read)[segments], lengths) + positions
    return Segments(
        ids=np.concatenate([each.ids for each in read])[tokens],
        positions=positions,
        samples=np.concatenate([each.samples for each in read])[segments],
        groups=np.repeat(np.arange(len(sizes)), sizes),
        lengths=lengths,
        columns={
            name: np.concatenate([each.columns[name] for each in read])[
                tokens if name in token_columns else segments
            ]
            for name in read[0].columns
        },
    )
