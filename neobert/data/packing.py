"""Packing: which documents share a microbatch. On indices alone, never on tokens.

Documents are taken in the order given until the next one does not fit; then every bin's gap is closed, best
fit first, from a reserve cut off the end of the order. What the reserve has left is packed the same way.
All bins are closed at once: with gaps and reserve both sorted from long to short, the greedy match of
gap k is `k + max(first_j - j, j <= k)`, `first_j` being the first document that fits gap j.

    N documents, B bins
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

# The reserve holds this many times what the gaps take on average, so that the last rounds have a choice.
RESERVE_FACTOR = 6
CLOSING_ROUNDS = 12
# Below this many documents the order's tail is packed exactly, document by document.
SMALL = 512


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Bins of documents: bin b holds `documents[offsets[b]:offsets[b + 1]]`.

    `documents` is int64 [N], each index once; `offsets` is int64 [B + 1].
    """

    documents: Indices
    offsets: Indices
    capacity: int
    num_tokens: int

    @property
    def num_bins(self) -> int:
        """Number of bins."""
        return len(self.offsets) - 1

    @property
    def fill(self) -> float:
        """Share of the bins' capacity that holds tokens."""
        return self.num_tokens / max(1, self.num_bins * self.capacity)

    def members(self, index: int) -> Indices:
        """Return the documents of one bin."""
        return self.documents[self.offsets[index] : self.offsets[index + 1]]


def pack(
    lengths: NDArray[np.integer], capacity: int, max_segments: int | None = None, *, keep_order: bool = False
) -> PackPlan:
    """Pack documents of `lengths` [N] tokens into bins of `capacity` tokens and `max_segments` documents.

    A pure function of its arguments. `keep_order` takes the documents strictly one after the other.
    Raises ValueError where a document is empty or longer than a bin.
    """
    sizes = np.ascontiguousarray(lengths, dtype=np.int64)
    limit = len(sizes) if max_segments is None else max_segments
    _check(sizes, capacity, limit)
    pending = np.arange(len(sizes), dtype=np.int64)
    if keep_order:
        return _plan([_bins_in_order(pending, sizes, capacity, limit)], sizes, capacity)
    parts = []
    while len(pending) > SMALL:
        size = _reserve_size(sizes[pending], capacity)
        bins, pending = _pack_level(pending[:-size], pending[-size:], sizes, capacity, limit)
        parts.append(bins)
    parts.append(_best_fit_decreasing(pending, sizes, capacity, limit))
    return _plan(parts, sizes, capacity)


def _check(lengths: Indices, capacity: int, limit: int) -> None:
    if len(lengths) and int(lengths.min()) < 1:
        raise ValueError("a document without tokens cannot be packed")
    if len(lengths) and int(lengths.max()) > capacity:
        raise ValueError(f"a document of {int(lengths.max())} tokens does not fit {capacity}")
    if len(lengths) and limit < 1:
        raise ValueError("a bin must hold at least one document")


@dataclass(frozen=True, slots=True)
class _Bins:
    """Documents grouped by bin: `bin_of` [n] is not decreasing."""

    documents: Indices
    bin_of: Indices
    num_bins: int


def _reserve_size(lengths: Indices, capacity: int) -> int:
    """Return how many documents to keep for closing gaps.

    A bin ends at a document drawn by its length, and somewhere within it: the gap is half the mean of the
    squares over the mean, which is that over twice the mean squared in documents.
    """
    mean = float(lengths.mean())
    gap_documents = float(np.square(lengths, dtype=np.float64).mean()) / mean**2 / 2
    num_bins = int(lengths.sum()) // capacity + 1
    return max(1, min(len(lengths) // 4, int(RESERVE_FACTOR * gap_documents * num_bins)))


def _bins_in_order(order: Indices, lengths: Indices, capacity: int, limit: int) -> _Bins:
    """Take documents one after the other; a bin ends where the next one does not fit."""
    starts = _chain(np.concatenate(([0], np.cumsum(lengths[order]))), capacity, limit)
    counts = np.diff(np.append(starts, len(order)))
    return _Bins(order, np.repeat(np.arange(len(starts)), counts), len(starts))


def _chain(ends: Indices, capacity: int, limit: int) -> Indices:
    """Walk from bin to bin over the cumulative lengths: the one step of packing that is sequential."""
    totals = ends.tolist()
    last = len(totals) - 1
    starts = []
    position = 0
    while position < last:
        starts.append(position)
        stop = min(last, position + limit)
        position = bisect_right(totals, totals[position] + capacity, position + 1, stop + 1) - 1
    return np.array(starts, dtype=np.int64)


def _pack_level(
    main: Indices, reserve: Indices, lengths: Indices, capacity: int, limit: int
) -> tuple[_Bins, Indices]:
    """Pack `main` in order, close the gaps from `reserve`; return the bins and the rest of the reserve."""
    bins = _bins_in_order(main, lengths, capacity, limit)
    gaps = capacity - np.bincount(bins.bin_of, lengths[main], minlength=bins.num_bins).astype(np.int64)
    room = limit - np.bincount(bins.bin_of, minlength=bins.num_bins)
    left = reserve[np.argsort(-lengths[reserve], kind="stable")]
    fillers, homes = [bins.documents], [bins.bin_of]
    for _ in range(CLOSING_ROUNDS):
        candidates = np.flatnonzero((gaps > 0) & (room > 0))
        home, taken = _close_once(candidates, gaps, lengths[left])
        if len(taken) == 0:
            break
        fillers.append(left[taken])
        homes.append(home)
        gaps[home] -= lengths[left[taken]]
        room[home] -= 1
        left = np.delete(left, taken)
    documents, bin_of = np.concatenate(fillers), np.concatenate(homes)
    by_bin = np.argsort(bin_of, kind="stable")
    return _Bins(documents[by_bin], bin_of[by_bin], bins.num_bins), np.sort(left)


def _close_once(bins: Indices, gaps: Indices, lengths: Indices) -> tuple[Indices, Indices]:
    """Give each bin at most one document, the longest that is free: (bins, positions in `lengths`).

    `lengths` falls; so do the gaps once sorted, and a document too long for one gap is too long for all
    after it.
    """
    bins = bins[np.argsort(-gaps[bins], kind="stable")]
    first = np.searchsorted(-lengths, -gaps[bins], side="left")
    rank = np.arange(len(bins))
    match = rank + np.maximum.accumulate(first - rank) if len(bins) else first
    found = match < len(lengths)
    return bins[found], match[found]


def _best_fit_decreasing(order: Indices, lengths: Indices, capacity: int, limit: int) -> _Bins:
    """Put the longest document first, each into the fullest bin that still takes it."""
    by_length = order[np.argsort(-lengths[order], kind="stable")]
    gaps = np.empty(len(order), dtype=np.int64)
    counts = np.zeros(len(order), dtype=np.int64)
    bin_of = np.empty(len(order), dtype=np.int64)
    num_bins = 0
    for place, length in enumerate(lengths[by_length].tolist()):
        fits = np.flatnonzero((gaps[:num_bins] >= length) & (counts[:num_bins] < limit))
        if len(fits):
            home = int(fits[np.argmin(gaps[fits])])
        else:
            home, num_bins = num_bins, num_bins + 1
            gaps[home] = capacity
        gaps[home] -= length
        counts[home] += 1
        bin_of[place] = home
    by_bin = np.argsort(bin_of, kind="stable")
    return _Bins(by_length[by_bin], bin_of[by_bin], num_bins)


def _plan(parts: list[_Bins], lengths: Indices, capacity: int) -> PackPlan:
    counts = [np.bincount(part.bin_of, minlength=part.num_bins) for part in parts]
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(counts)))).astype(np.int64)
    documents = np.concatenate([part.documents for part in parts])
    return PackPlan(documents, offsets, capacity, int(lengths.sum()))
