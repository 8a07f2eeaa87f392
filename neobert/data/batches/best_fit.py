"""Best-fit decreasing: the longest document first, each into the fullest bin that still takes it.

All documents of one length are placed together, and all bins with the same gap are filled together, so the
cost follows the number of distinct lengths and gaps, not the number of documents.

    N documents, b bins with the same gap
"""

from __future__ import annotations

from bisect import bisect_left, insort

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
        """Add those bins [b] whose gap [b] and room for documents [b] take another document."""
        is_open = (gaps > 0) & (room > 0)
        for gap in np.unique(gaps[is_open]).tolist():
            if gap not in self._bins:
                insort(self._gaps, gap)
                self._bins[gap] = []
            self._bins[gap].append(bins[is_open & (gaps == gap)])

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


def best_fit_decreasing(lengths: Indices, capacity: int, limit: int) -> tuple[Indices, Indices, int]:
    """Pack documents of `lengths` [N] tokens into bins of `capacity` tokens and `limit` documents.

    Returns the documents from long to short [N], the bin of each [N], and the number of bins.
    """
    documents = np.argsort(-lengths, kind="stable")
    bin_of = np.empty(len(lengths), dtype=np.int64)
    room = np.full(len(lengths), limit, dtype=np.int64)
    bins = _OpenBins(capacity)
    values, num_equal = np.unique(lengths, return_counts=True)
    start = 0
    for length, count in zip(values[::-1].tolist(), num_equal[::-1].tolist(), strict=True):
        stop = start + count
        while start < stop:
            num_new = -(-(stop - start) // min(capacity // length, limit))
            gap, ids = bins.remove_tightest(length) or bins.open(num_new)
            counts = _counts(np.minimum(room[ids], gap // length), stop - start)
            bin_of[start : start + counts.sum()] = np.repeat(ids, counts)
            start += int(counts.sum())
            room[ids] -= counts
            bins.add(gap - counts * length, ids, room[ids])
    return documents, bin_of, bins.num_bins


def _counts(most: Indices, num_documents: int) -> Indices:
    """Return how many documents each bin takes, the first bins first, given how many each can take [b]."""
    ends = np.cumsum(most)
    return np.maximum(np.minimum(num_documents - (ends - most), most), 0)
