"""Packing: assignment of documents to microbatches (bins), by length alone.

`pack` fills bins with documents in the given order and starts a new bin when the next document does not fit.
It then fills the gap (free tokens) of each bin with the longest fitting documents of a reserve, cut off the
end of the order, and packs the rest of the reserve in the same way. All gaps are filled at once: with gaps
and reserve sorted in decreasing order, the greedy match of gap k is `k + max(first_j - j, j <= k)`, where
`first_j` is the first document that fits gap j.

If a bin holds few documents, this leaves gaps, because there are too few short documents. `pack_evenly` then
uses best fit, longest first. It does so only in this case, because best fit puts documents of similar length
together, while random mixing makes microbatches similar to each other. Best fit concentrates long documents
and leaves bins of short ones that exceed the document limit of a bin, so `pack_evenly` also tries to spread
the long documents over all bins.

Shapes: N documents, B bins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from neobert.data.batches.best_fit import best_fit_decreasing, spread_decreasing

Indices = NDArray[np.int64]

# The reserve holds this many times what the gaps take on average, so that the last rounds have a choice.
RESERVE_FACTOR = 6
CLOSING_ROUNDS = 12
# Share of the bins' capacity that has to hold tokens for documents to stay in the order given.
ENOUGH_FILL = 0.99
# Mean documents a bin, as a share of the limit, at which bins filled in order rarely reach the limit.
COMFORTABLE_SHARE = 0.5
# Spread documents: (tokens that the bins have to hold on average, as a share; share of the tokens that is
# packed best fit in the end). Best fit closes the last gaps to the token but takes slots; where slots are
# scarce, leaving a little space in every bin packs more.
SPREADS = ((1.0, 0.05), (0.995, 0.0))
# Below this many documents the order's tail is packed best fit.
SMALL = 512


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Assignment of documents to bins: bin b holds `documents[offsets[b]:offsets[b + 1]]`.

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

    @property
    def fewest_bins(self) -> int:
        """Lower bound of the number of bins: all of them full."""
        return -(-self.num_tokens // self.capacity)

    def members(self, index: int) -> Indices:
        """Return the indices of the documents in one bin, int64."""
        return self.documents[self.offsets[index] : self.offsets[index + 1]]


Packer = Callable[[NDArray[np.int64], int, int | None], PackPlan]


def pack(
    lengths: NDArray[np.integer], capacity: int, max_segments: int | None = None, *, keep_order: bool = False
) -> PackPlan:
    """Pack documents of `lengths` [N] tokens into bins of `capacity` tokens and `max_segments` documents.

    A pure function of its arguments. With `keep_order`, documents stay strictly in the given order.
    Raises ValueError if a document is empty or longer than a bin.
    """
    sizes = np.ascontiguousarray(lengths, dtype=np.int64)
    limit = len(sizes) if max_segments is None else max_segments
    _check_lengths(sizes, capacity, limit)
    pending = np.arange(len(sizes), dtype=np.int64)
    if keep_order:
        return _build_plan([_bins_in_order(pending, sizes, capacity, limit)], sizes, capacity)
    return _build_plan(_pack_levels(pending, sizes, capacity, limit), sizes, capacity)


def pack_evenly(lengths: NDArray[np.integer], capacity: int, max_segments: int | None = None) -> PackPlan:
    """Pack with `pack` and, unless its bins are full, also by length; return the plan with the fewest bins.

    A pure function of its arguments. Raises ValueError if a document is empty or longer than a bin.
    """
    in_order = pack(lengths, capacity, max_segments)
    if is_full(in_order):
        return in_order
    sizes = np.ascontiguousarray(lengths, dtype=np.int64)
    limit = len(sizes) if max_segments is None else max_segments
    by_length = [_pack_spread(sizes, capacity, limit, *spread) for spread in SPREADS]
    # `min` takes the first of equals: spread documents make one microbatch like the next, best fit does not.
    return min(*by_length, _pack_best_fit(sizes, capacity, limit), in_order, key=lambda plan: plan.num_bins)


def is_full(plan: PackPlan) -> bool:
    """Return whether a plan has at most about 1 % more bins than the lower bound."""
    return plan.num_bins * ENOUGH_FILL <= plan.fewest_bins


def _pack_spread(
    lengths: Indices, capacity: int, limit: int, mean_fill: float, finishing_share: float
) -> PackPlan:
    num_bins = ceil(int(lengths.sum()) / (capacity * mean_fill))
    placed, bin_of, total = spread_decreasing(lengths, capacity, limit, num_bins, finishing_share)
    return _build_plan([_group_by_bin(placed, bin_of, total)], lengths, capacity)


def _pack_best_fit(lengths: Indices, capacity: int, limit: int) -> PackPlan:
    """Pack by best fit without a document limit, then repack the bins that exceed `limit`, in order.

    Best fit puts the shortest documents together into the last bins. Enough other bins are repacked with
    them, so that bins stay below the limit and there are short documents to fill the gaps.
    """
    whole = _best_fit(np.arange(len(lengths), dtype=np.int64), lengths, capacity, len(lengths))
    is_dissolved = _bins_to_repack(np.bincount(whole.bin_of, minlength=whole.num_bins), limit)
    is_loose = is_dissolved[whole.bin_of]
    numbers = np.cumsum(~is_dissolved) - 1
    kept = _BinAssignment(
        whole.documents[~is_loose], numbers[whole.bin_of[~is_loose]], int((~is_dissolved).sum())
    )
    loose = np.sort(whole.documents[is_loose])
    return _build_plan([kept, *_pack_levels(loose, lengths, capacity, limit)], lengths, capacity)


def _bins_to_repack(counts: Indices, limit: int) -> NDArray[np.bool_]:
    """Return a mask of the bins to repack: bins over the limit, and others to lower the mean per bin."""
    is_chosen = counts > limit
    if not is_chosen.any():
        return is_chosen
    comfortable = COMFORTABLE_SHARE * limit
    others = np.flatnonzero(~is_chosen)
    excess = float((counts[is_chosen] - comfortable).sum())
    spare = comfortable - float(counts[others].mean()) if len(others) else 0.0
    num_others = min(len(others), ceil(excess / spare)) if spare > 0 else len(others)
    # The first bins hold the longest documents: every n-th one is a fair sample.
    is_chosen[others[np.arange(num_others) * len(others) // max(1, num_others)]] = True
    return is_chosen


def _check_lengths(lengths: Indices, capacity: int, limit: int) -> None:
    if len(lengths) and int(lengths.min()) < 1:
        raise ValueError("a document without tokens cannot be packed")
    if len(lengths) and int(lengths.max()) > capacity:
        raise ValueError(f"a document of {int(lengths.max())} tokens exceeds the bin capacity of {capacity}")
    if len(lengths) and limit < 1:
        raise ValueError("a bin must have room for at least one document")


@dataclass(frozen=True, slots=True)
class _BinAssignment:
    """Documents [n] sorted by bin: `bin_of` [n] never decreases."""

    documents: Indices
    bin_of: Indices
    num_bins: int


def _reserve_size(lengths: Indices, capacity: int) -> int:
    """Return the number of documents to reserve for filling gaps.

    The document that overflows a bin is drawn in proportion to its length l and cut at a uniform position.
    The expected gap is therefore E[l^2] / (2 E[l]) tokens, or E[l^2] / (2 E[l]^2) documents of mean length.
    """
    mean = float(lengths.mean())
    gap_documents = float(np.square(lengths, dtype=np.float64).mean()) / mean**2 / 2
    num_bins = int(lengths.sum()) // capacity + 1
    return max(1, min(len(lengths) // 4, int(RESERVE_FACTOR * gap_documents * num_bins)))


def _bins_in_order(order: Indices, lengths: Indices, capacity: int, limit: int) -> _BinAssignment:
    """Fill bins with documents in order; start a new bin when the next document does not fit."""
    starts = _first_documents(np.concatenate(([0], np.cumsum(lengths[order]))), capacity, limit)
    counts = np.diff(np.append(starts, len(order)))
    return _BinAssignment(order, np.repeat(np.arange(len(starts)), counts), len(starts))


def _first_documents(ends: Indices, capacity: int, limit: int) -> Indices:
    """Return the index of the first document of each bin, given cumulative lengths [n + 1]."""
    totals = ends.tolist()
    last = len(totals) - 1
    starts = []
    position = 0
    while position < last:
        starts.append(position)
        stop = min(last, position + limit)
        position = bisect_right(totals, totals[position] + capacity, position + 1, stop + 1) - 1
    return np.array(starts, dtype=np.int64)


def _pack_levels(pending: Indices, lengths: Indices, capacity: int, limit: int) -> list[_BinAssignment]:
    """Pack `pending` in order, then the rest of each reserve; pack the last `SMALL` documents by best fit."""
    parts = []
    while len(pending) > SMALL:
        size = _reserve_size(lengths[pending], capacity)
        bins, pending = _pack_level(pending[:-size], pending[-size:], lengths, capacity, limit)
        parts.append(bins)
    return [*parts, _best_fit(pending, lengths, capacity, limit)]


def _pack_level(
    main: Indices, reserve: Indices, lengths: Indices, capacity: int, limit: int
) -> tuple[_BinAssignment, Indices]:
    """Pack `main` in order, fill the gaps from `reserve`; return the bins and the rest of the reserve."""
    bins = _bins_in_order(main, lengths, capacity, limit)
    gaps = capacity - np.bincount(bins.bin_of, lengths[main], minlength=bins.num_bins).astype(np.int64)
    room = limit - np.bincount(bins.bin_of, minlength=bins.num_bins)
    left = reserve[np.argsort(-lengths[reserve], kind="stable")]
    fillers, homes = [bins.documents], [bins.bin_of]
    for _ in range(CLOSING_ROUNDS):
        candidates = np.flatnonzero((gaps > 0) & (room > 0))
        home, taken = _fill_gaps_once(candidates, gaps, lengths[left])
        if len(taken) == 0:
            break
        fillers.append(left[taken])
        homes.append(home)
        gaps[home] -= lengths[left[taken]]
        room[home] -= 1
        left = np.delete(left, taken)
    return _group_by_bin(np.concatenate(fillers), np.concatenate(homes), bins.num_bins), np.sort(left)


def _fill_gaps_once(bins: Indices, gaps: Indices, lengths: Indices) -> tuple[Indices, Indices]:
    """Assign at most one document to each bin: the longest unused one that fits its gap.

    Returns the bins and the position of each document in `lengths`, which is sorted in decreasing order. So
    are the gaps, and a document too long for one gap is too long for all later ones.
    """
    bins = bins[np.argsort(-gaps[bins], kind="stable")]
    first = np.searchsorted(-lengths, -gaps[bins], side="left")
    rank = np.arange(len(bins))
    match = rank + np.maximum.accumulate(first - rank) if len(bins) else first
    found = match < len(lengths)
    return bins[found], match[found]


def _best_fit(order: Indices, lengths: Indices, capacity: int, limit: int) -> _BinAssignment:
    placed, bin_of, num_bins = best_fit_decreasing(lengths[order], capacity, limit)
    return _group_by_bin(order[placed], bin_of, num_bins)


def _group_by_bin(documents: Indices, bin_of: Indices, num_bins: int) -> _BinAssignment:
    by_bin = np.argsort(bin_of, kind="stable")
    return _BinAssignment(documents[by_bin], bin_of[by_bin], num_bins)


def _build_plan(parts: list[_BinAssignment], lengths: Indices, capacity: int) -> PackPlan:
    counts = [np.bincount(part.bin_of, minlength=part.num_bins) for part in parts]
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(counts)))).astype(np.int64)
    documents = np.concatenate([part.documents for part in parts])
    return PackPlan(documents, offsets, capacity, int(lengths.sum()))
