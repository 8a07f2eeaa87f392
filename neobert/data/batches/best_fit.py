"""Packing by length, the longest document first: best fit, or spread evenly over a number of bins.

Best fit places all documents of one length together, and fills all bins with the same gap together, so its
cost follows the number of distinct lengths and gaps, not the number of documents.

    N documents, b bins with the same gap
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class _OpenBins:
    """Bins that still take documents, by gap; among equal gaps the bin opened first comes first."""

    def __init__(self, capacity: int) -> None:
        self.num_bins = 0
        self._capacity = capacity
        self._gaps: list[int] = []
        self._bins: dict[int, list[Indices]] = {}

    def add(self, gaps: Indices, bins: Indices, room: Indices) -> None:
        """Add the bins [b] that have a gap in tokens [b] and room for another document [b]."""
        open_bins = np.flatnonzero((gaps > 0) & (room > 0))
        open_bins = open_bins[np.argsort(gaps[open_bins], kind="stable")]
        values, starts = np.unique(gaps[open_bins], return_index=True)
        for gap, group in zip(values.tolist(), np.split(open_bins, starts[1:]), strict=False):
            if gap not in self._bins:
                insort(self._gaps, gap)
                self._bins[gap] = []
            self._bins[gap].append(bins[group])

    def remove_tightest(self, length: int) -> tuple[int, Indices] | None:
        """Remove and return all bins [b] with the smallest gap that takes `length`; None if no gap does."""
        position = bisect_left(self._gaps, length)
        if position == len(self._gaps):
            return None
        gap = self._gaps.pop(position)
        return gap, np.sort(np.concatenate(self._bins.pop(gap)))

    def open(self, count: int) -> tuple[int, Indices]:
        """Return `count` new, empty bins."""
        first, self.num_bins = self.num_bins, self.num_bins + count
        return self._capacity, np.arange(first, self.num_bins, dtype=np.int64)


def best_fit_decreasing(
    lengths: Indices, capacity: int, limit: int, loads: Indices | None = None, counts: Indices | None = None
) -> tuple[Indices, Indices, int]:
    """Pack documents of `lengths` [N] tokens into bins of `capacity` tokens and `limit` documents.

    The first bins may hold `loads` tokens in `counts` documents already. Returns the documents from long to
    short [N], the bin of each [N], and the number of bins.
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
            taken = _counts(np.minimum(room[ids], gap // length), stop - start)
            bin_of[start : start + taken.sum()] = np.repeat(ids, taken)
            start += int(taken.sum())
            room[ids] -= taken
            bins.add(gap - taken * length, ids, room[ids])
    return documents, bin_of, bins.num_bins


def spread_decreasing(
    lengths: Indices, capacity: int, limit: int, num_bins: int, finishing_share: float
) -> tuple[Indices, Indices, int]:
    """Assign each document, longest first, to the emptiest of `num_bins` bins, and the rest by best fit.

    Long documents are spread over all bins, and with them the short ones that close the gaps: no bin needs
    many more documents than the mean. The shortest documents, `finishing_share` of the tokens, and those
    that no bin took are packed best fit, into more bins if necessary. Returns what `best_fit_decreasing`
    returns, with the documents in the order in which they were placed.
    """
    documents = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[documents])
    num_spread = int(np.searchsorted(ends, (1 - finishing_share) * ends[-1], side="right"))
    bin_of = _emptiest(lengths[documents[:num_spread]], capacity, limit, num_bins)
    is_placed = bin_of >= 0
    placed, homes = documents[:num_spread][is_placed], bin_of[is_placed]
    rest = np.concatenate((documents[:num_spread][~is_placed], documents[num_spread:]))
    loads = np.bincount(homes, lengths[placed], minlength=num_bins).astype(np.int64)
    counts = np.bincount(homes, minlength=num_bins)
    finishing, more_homes, _ = best_fit_decreasing(lengths[rest], capacity, limit, loads, counts)
    used, numbers = np.unique(np.concatenate((homes, more_homes)), return_inverse=True)
    return np.concatenate((placed, rest[finishing])), numbers, len(used)


def _emptiest(lengths: Indices, capacity: int, limit: int, num_bins: int) -> Indices:
    """Return the bin of each document [n], -1 where the emptiest bin has no space for it."""
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


def _counts(most: Indices, num_documents: int) -> Indices:
    """Return how many documents each bin takes, the first bins first, given how many each can take [b]."""
    ends = np.cumsum(most)
    counts: Indices = np.maximum(np.minimum(num_documents - (ends - most), most), 0)
    return counts
