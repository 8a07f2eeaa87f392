"""Bin packing in decreasing order of length: by best fit, or evenly over a given number of bins.

Best fit handles all documents of one length, and all bins with the same gap (free tokens), at once. Its run
time depends on the number of distinct lengths and gaps, not on the number of documents.

Shapes: N documents, b bins with the same gap.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class _OpenBins:
    """Bins with space for documents, by gap (free tokens); bins with equal gaps are ordered by index."""

    def __init__(self, capacity: int) -> None:
        self.num_bins = 0
        self._capacity = capacity
        self._gaps: list[int] = []
        self._bins: dict[int, list[Indices]] = {}

    def add(self, gaps: Indices, bins: Indices, room: Indices) -> None:
        """Add the bins [b] with gaps (free tokens) [b] and room (free documents) [b] that are above 0."""
        open_bins = np.flatnonzero((gaps > 0) & (room > 0))
        open_bins = open_bins[np.argsort(gaps[open_bins], kind="stable")]
        values, starts = np.unique(gaps[open_bins], return_index=True)
        for gap, group in zip(values.tolist(), np.split(open_bins, starts[1:]), strict=False):
            if gap not in self._bins:
                insort(self._gaps, gap)
                self._bins[gap] = []
            self._bins[gap].append(bins[group])

    def remove_tightest(self, length: int) -> tuple[int, Indices] | None:
        """Remove all bins with the smallest gap of at least `length` tokens.

        Returns the gap and the bins [b], or None if no gap is that large.
        """
        position = bisect_left(self._gaps, length)
        if position == len(self._gaps):
            return None
        gap = self._gaps.pop(position)
        return gap, np.sort(np.concatenate(self._bins.pop(gap)))

    def open(self, count: int) -> tuple[int, Indices]:
        """Create `count` empty bins; return (capacity, bins [count])."""
        first, self.num_bins = self.num_bins, self.num_bins + count
        return self._capacity, np.arange(first, self.num_bins, dtype=np.int64)


def best_fit_decreasing(
    lengths: Indices, capacity: int, limit: int, loads: Indices | None = None, counts: Indices | None = None
) -> tuple[Indices, Indices, int]:
    """Pack documents of `lengths` [N] tokens into bins of `capacity` tokens and `limit` documents.

    `loads` and `counts` are the tokens and documents already in the first bins. Returns the document indices
    in decreasing order of length [N], the bin of each [N], and the number of bins.
    """
    documents = np.argsort(-lengths, kind="stable")
    bin_of = np.empty(len(lengths), dtype=np.int64)
    room = np.full(len(lengths), limit, dtype=np.int64)
    bins = _OpenBins(capacity)
    if loads is not None and counts is not None:
        bins.num_bins = len(loads)
        bins.add(capacity - loads, np.arange(len(loads), dtype=np.int64), limit - counts)
        room = np.concatenate((limit - counts, room))
    values, num_equal = np.unique(lengths, return_counts=True)
    start = 0
    for length, count in zip(values[::-1].tolist(), num_equal[::-1].tolist(), strict=True):
        stop = start + count
        while start < stop:
            num_new = -(-(stop - start) // min(capacity // length, limit))
            gap, ids = bins.remove_tightest(length) or bins.open(num_new)
            taken = _distribute_documents(np.minimum(room[ids], gap // length), stop - start)
            bin_of[start : start + taken.sum()] = np.repeat(ids, taken)
            start += int(taken.sum())
            room[ids] -= taken
            bins.add(gap - taken * length, ids, room[ids])
    return documents, bin_of, bins.num_bins


def spread_decreasing(
    lengths: Indices, capacity: int, limit: int, num_bins: int, finishing_share: float
) -> tuple[Indices, Indices, int]:
    """Assign documents, longest first, to the bin with the fewest tokens; pack the shortest by best fit.

    This spreads long documents, and the short ones that fill the remaining space, over all `num_bins` bins,
    so that no bin needs many more documents than the mean. Best fit packs the shortest documents
    (`finishing_share` of all tokens) and documents that fit in no bin, and opens more bins if necessary.
    Returns the document indices in order of assignment [N], the bin of each [N], and the number of bins.
    """
    documents = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[documents])
    num_spread = int(np.searchsorted(ends, (1 - finishing_share) * ends[-1], side="right"))
    bin_of = _assign_to_emptiest(lengths[documents[:num_spread]], capacity, limit, num_bins)
    is_placed = bin_of >= 0
    placed, homes = documents[:num_spread][is_placed], bin_of[is_placed]
    rest = np.concatenate((documents[:num_spread][~is_placed], documents[num_spread:]))
    loads = np.bincount(homes, lengths[placed], minlength=num_bins).astype(np.int64)
    counts = np.bincount(homes, minlength=num_bins)
    finishing, more_homes, _ = best_fit_decreasing(lengths[rest], capacity, limit, loads, counts)
    used, numbers = np.unique(np.concatenate((homes, more_homes)), return_inverse=True)
    return np.concatenate((placed, rest[finishing])), numbers, len(used)


def _assign_to_emptiest(lengths: Indices, capacity: int, limit: int, num_bins: int) -> Indices:
    """Return the bin of each document [n], the one with the fewest tokens so far; -1 if it does not fit."""
    # A heap of integers, load * num_bins + bin: the emptiest bin first, then the lowest number.
    heap = list(range(num_bins))
    counts = [0] * num_bins
    bin_of = []
    for length in lengths.tolist():
        while heap and counts[heap[0] % num_bins] == limit:
            heappop(heap)
        if not heap or heap[0] // num_bins + length > capacity:
            bin_of.append(-1)
            continue
        home = heap[0] % num_bins
        heapreplace(heap, heap[0] + length * num_bins)
        counts[home] += 1
        bin_of.append(home)
    return np.array(bin_of, dtype=np.int64)


def _distribute_documents(max_per_bin: Indices, num_documents: int) -> Indices:
    """Distribute documents over bins in order, up to `max_per_bin` [b]; return the number per bin [b]."""
    ends = np.cumsum(max_per_bin)
    counts: Indices = np.maximum(np.minimum(num_documents - (ends - max_per_bin), max_per_bin), 0)
    return counts
