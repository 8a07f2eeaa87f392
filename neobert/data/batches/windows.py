"""Global order of microbatches: a sequence of windows, whose examples are shuffled and packed together.

Window w of epoch e is a pure function of the seed, e, w, the packer and the text, so a resume needs only a
`Cursor`.

An example is a segment, or a few that stay together (`SegmentStore`).

Shapes: n examples of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.document_stream import DocumentStream
from neobert.data.batches.masking import EVALUATION_EPOCH
from neobert.data.batches.packing import Packer, PackPlan, pack, pack_evenly
from neobert.data.batches.prefetch import WorkerThreads
from neobert.data.batches.shape import BatchShape, batch_shape, with_enough_slots, with_slots_for_pieces
from neobert.data.batches.stateless_random import permutation_slice, stream_key
from neobert.data.store.segment_store import LengthStatistics, SegmentStore
from neobert.errors import ProjectError
from neobert.plan.derived import Derived
from neobert.plan.pieces import piece_length

WINDOW_EXAMPLES = 1 << 20
_ORDER_STREAM, _BIN_STREAM = 0x6F72646572, 0x62696E73
# A run keeps the packer that it started with: another one makes other microbatches. New runs use the newest.
PACKERS: dict[int, Packer] = {3: pack_evenly, 4: pack_evenly}
NEWEST_PACKER = max(PACKERS)
# Version 0.2.0 wrote packer 3; its runs keep their padded rows, too.
FIRST_WITH_SIMILAR_ROWS = 4
SORTED_TOGETHER, FEWEST_GROUPS = 50, 8
"""Number of microbatches of padded rows whose examples are sorted by length together, and minimum number of
such groups in a window: with fewer, the same examples would share a microbatch in every epoch."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of the next microbatch: number `index` of window `window` of epoch `epoch`.

    For a stream, `stream` is the start of the window: {"state": the source's position, "segment": the
    number of the window's first segment}. `packer` is the key in `PACKERS` of the packing algorithm.
    `corpus_tokens` are the tokens drawn from each corpus of a mixture so far, over all ranks; None for other
    text, and in checkpoints of versions that did not count them.
    """

    epoch: int = 0
    window: int = 0
    index: int = 0
    stream: dict[str, Any] | None = None
    packer: int = NEWEST_PACKER
    corpus_tokens: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the cursor as a JSON-serializable dict."""
        data = asdict(self)
        if self.corpus_tokens is None:
            del data["corpus_tokens"]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Cursor:
        """Build a cursor from the result of `to_dict`.

        Raises ProjectError CKP007 for a packer that this version does not support.
        """
        packer = data["packer"]
        if packer not in PACKERS:
            raise ProjectError(
                "CKP007",
                f"the checkpoint uses packing algorithm {packer!r}, but this version supports "
                f"{', '.join(map(str, PACKERS))}",
                "resume with the version of neobert-launch that wrote the checkpoint",
                "trainer_state/state.json",
            )
        counted = data.get("corpus_tokens")
        return cls(**data | {"corpus_tokens": None if counted is None else tuple(counted)})

    def at_window(self, epoch: int, window: int, stream: dict[str, Any] | None = None) -> Cursor:
        """Return a cursor at the start of another window of the same run."""
        return Cursor(epoch, window, 0, stream, self.packer)


@dataclass(frozen=True, eq=False)
class Window:
    """One window: examples of `store`, and their assignment to microbatches.

    `examples` int64 [n] are indices into the store, in shuffled order; the bins of `plan` are indices into
    `examples`, and `order` is the order of the bins. The sample id of a segment is its number in the store
    plus `sample_offset`, which is one number or int64 [n].
    `after` is the cursor of the next window, or None after the last window. The C corpora of a mixture end at
    the store indices `corpus_stops` [C]; None for other text.
    """

    start: Cursor
    store: SegmentStore
    examples: NDArray[np.int64]
    plan: PackPlan
    order: NDArray[np.int64]
    sample_offset: int | NDArray[np.int64]
    after: Cursor | None
    corpus_stops: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.order)

    def members(self, index: int) -> NDArray[np.int64]:
        """Return the store indices of one microbatch's examples."""
        return self.examples[self.plan.members(int(self.order[index]))]

    def offsets(self, index: int) -> int | NDArray[np.int64]:
        """Return the sample id offset of one microbatch's examples: one for all, or int64 [examples]."""
        if isinstance(self.sample_offset, int):
            return self.sample_offset
        return self.sample_offset[self.plan.members(int(self.order[index]))]

    def add_token_counts(self, index: int, counted: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Return the counts per corpus plus one microbatch's tokens; unchanged without a mixture."""
        if self.corpus_stops is None or counted is None:
            return counted
        members = self.members(index)
        corpora = np.searchsorted(self.corpus_stops, members, side="right")
        tokens = np.bincount(corpora, self.store.lengths(members), minlength=len(counted))
        return tuple(before + int(drawn) for before, drawn in zip(counted, tokens, strict=True))


class MeasuredText(Protocol):
    """Interface of training text of which the lengths of all examples, or of a sample, are known."""

    @property
    def statistics(self) -> LengthStatistics:
        """Statistics of the lengths of examples, in tokens."""

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return the lengths of a sample of examples, in tokens."""


def training_shape(config: RunConfig, text: MeasuredText, packer: int = NEWEST_PACKER) -> Derived[BatchShape]:
    """Derive the microbatch shape for a training text and a packer of `PACKERS`."""
    shape = batch_shape(config, config.trainer.per_device_train_batch_size, text.statistics)
    keeps_order = isinstance(text, DocumentStream) and text.keeps_order
    if not keeps_order and shape.value.is_packed:
        shape = with_enough_slots(shape, text.sample_lengths(), PACKERS[packer])
    return with_slots_for_pieces(shape, piece_length(config))


class WindowSource(Protocol):
    """Interface of a source of windows."""

    def load(self, cursor: Cursor) -> Window:
        """Return the window at a cursor."""


@dataclass(frozen=True, eq=False)
class PreparedWindows:
    """Windows of memory-mapped text, epoch after epoch."""

    store: SegmentStore
    shape: BatchShape
    seed: int
    window_examples: int = WINDOW_EXAMPLES

    def load(self, cursor: Cursor) -> Window:
        """Return a window of the epoch's permutation, without computing the whole permutation."""
        total = len(self.store)
        num_windows = -(-total // self.window_examples)
        start, stop = (total * (cursor.window + step) // num_windows for step in (0, 1))
        examples = permutation_slice(stream_key(_ORDER_STREAM, self.seed, cursor.epoch), start, stop, total)
        is_last = cursor.window + 1 == num_windows
        after = (
            cursor.at_window(cursor.epoch + 1, 0)
            if is_last
            else cursor.at_window(cursor.epoch, cursor.window + 1)
        )
        packer = PACKERS[cursor.packer]
        first = replace(cursor, index=0)
        return pack_window(first, self.store, examples, self.shape, packer, self.seed, 0, after)


@dataclass(frozen=True, eq=False)
class StreamedWindows:
    """Windows of streamed text, epoch after epoch."""

    stream: DocumentStream
    shape: BatchShape
    seed: int

    def load(self, cursor: Cursor) -> Window:
        """Read a window or, at the end of the stream, the first window of the next epoch.

        Raises DAT004 if the stream has no text.
        """
        position = cursor.stream or {"state": None, "segment": 0}
        read = self.stream.read_window(position["state"], position["segment"])
        if read is None and cursor.window == 0:
            raise ProjectError(
                "DAT004", "has no document with text", "check dataset.text_column", self.stream.label
            )
        if read is None:
            return self.load(cursor.at_window(cursor.epoch + 1, 0))
        places = np.arange(len(read.store), dtype=np.int64)
        packer: Packer = partial(pack, keep_order=True)
        if not self.stream.keeps_order:
            key = stream_key(_ORDER_STREAM, self.seed, cursor.epoch, cursor.window)
            places = permutation_slice(key, 0, len(places), len(places))
            packer = PACKERS[cursor.packer]
        following = {"state": read.next_state, "segment": read.next_segment}
        return pack_window(
            replace(cursor, index=0),
            read.store,
            places,
            self.shape,
            packer,
            None if self.stream.keeps_order else self.seed,
            position["segment"],
            cursor.at_window(cursor.epoch, cursor.window + 1, following),
        )


@dataclass(frozen=True, eq=False)
class FixedWindows:
    """Windows of one pass over an evaluation split, in the order of the text."""

    store: SegmentStore
    shape: BatchShape

    def load(self, cursor: Cursor) -> Window:
        """Return the window at a cursor, in the order of the text."""
        start = cursor.window * WINDOW_EXAMPLES
        stop = min(start + WINDOW_EXAMPLES, len(self.store))
        after = Cursor(EVALUATION_EPOCH, cursor.window + 1) if stop < len(self.store) else None
        examples = np.arange(start, stop, dtype=np.int64)
        window = replace(cursor, epoch=EVALUATION_EPOCH, index=0)
        # `pack` keeps the order of the text; dense packing would put the longest documents first.
        return pack_window(window, self.store, examples, self.shape, pack, None, 0, after)


def pack_window(
    start: Cursor,
    store: SegmentStore,
    examples: NDArray[np.int64],
    shape: BatchShape,
    packer: Packer,
    seed: int | None,
    sample_offset: int | NDArray[np.int64],
    after: Cursor | None,
) -> Window:
    """Pack examples into microbatches, and shuffle the microbatches unless `seed` is None."""
    is_sorted = seed is not None and start.packer >= FIRST_WITH_SIMILAR_ROWS
    plan = plan_microbatches(store.lengths(examples), shape, packer, is_sorted=is_sorted)
    order = np.arange(plan.num_bins, dtype=np.int64)
    if seed is not None:
        # The packer puts leftovers into the last bins.
        order = permutation_slice(
            stream_key(_BIN_STREAM, seed, start.epoch, start.window), 0, len(order), len(order)
        )
    return Window(start, store, examples, plan, order, sample_offset, after)


def plan_microbatches(
    lengths: NDArray[np.int64], shape: BatchShape, packer: Packer, *, is_sorted: bool
) -> PackPlan:
    """Assign examples of `lengths` [n] tokens to microbatches.

    With `is_sorted`, the padded rows of a microbatch have similar lengths; packing ignores it.
    """
    if shape.is_packed:
        return packer(lengths, shape.capacity, shape.max_examples)
    return _plan_rows(lengths, shape, is_sorted=is_sorted)


def _plan_rows(lengths: NDArray[np.int64], shape: BatchShape, *, is_sorted: bool) -> PackPlan:
    """Assign examples to microbatches of padded rows; with `is_sorted`, of similar length, to pad less."""
    places = np.arange(len(lengths), dtype=np.int64)
    offsets = np.append(places[:: shape.max_examples], len(lengths)).astype(np.int64)
    if is_sorted:
        together = max(1, min(SORTED_TOGETHER, (len(offsets) - 1) // FEWEST_GROUPS))
        places = np.lexsort((lengths, places // (shape.max_examples * together)))
    return PackPlan(places, offsets, shape.capacity, 0)


def microbatch_positions(
    source: WindowSource,
    cursor: Cursor,
    threads: WorkerThreads,
    wait: Callable[[Future[Window]], Window],
) -> Iterator[tuple[Window, int, Cursor]]:
    """Yield (window, index of the microbatch, next cursor) in global order, starting at a cursor.

    If `threads` has a thread, the next window is loaded in the background.
    """
    upcoming: Cursor | None = cursor
    ahead: Future[Window] | None = None
    index, counted = cursor.index, cursor.corpus_tokens
    while upcoming is not None:
        window = wait(ahead or threads.submit(partial(source.load, upcoming)))
        upcoming = window.after
        ahead = threads.submit(partial(source.load, upcoming)) if upcoming and threads.count else None
        for number in range(index, len(window)):
            counted = window.add_token_counts(number, counted)
            yield window, number, replace(window.start, index=number + 1, corpus_tokens=counted)
        index = max(0, index - len(window))  # a cursor may be after the last microbatch of its window
