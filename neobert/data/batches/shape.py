"""Static shape of a microbatch."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.packing import Packer, PackPlan, is_full
from neobert.data.store.segment_store import LengthStatistics
from neobert.errors import ProjectError
from neobert.families.table import max_row_length
from neobert.plan.derived import Derived
from neobert.plurals import counted
from neobert.tasks.specs import spec_of

# Randomly drawn documents need more slots than this in one of tens of thousands of microbatches.
# Unused slots cost time: the attention kernel processes them.
SPREAD = 4.0
SLOT_MULTIPLE = 8
SLOT_SAMPLE_SEGMENTS = 1 << 14
# Where no number of slots fills the microbatches, this share of what any number fills is enough.
NEARLY_AS_FEW = 0.995


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Size of a microbatch: up to `max_examples` examples in `rows` padded rows, or in `capacity` tokens.

    Attributes:
        texts: maximum number of segments of an example.
        cuts: maximum number of cuts of segments by the sequence-length warm-up.
    """

    rows: int
    row_length: int
    max_examples: int
    is_packed: bool
    texts: int = 1
    cuts: int = 0

    @property
    def capacity(self) -> int:
        """Number of tokens in a packed microbatch."""
        return self.rows * self.row_length

    @property
    def num_slots(self) -> int:
        """Number of segments in `cu_seqlens`: documents, their pieces, and padding segments at the end."""
        return self.max_examples * self.texts + self.rows + self.cuts


def segment_length(config: RunConfig) -> int:
    """Return the maximum segment length in tokens: the smallest limit of dataset, collator and tokenizer."""
    bounds = (config.dataset.max_seq_length, config.datacollator.max_length, config.tokenizer.max_length)
    return min(bound for bound in bounds if bound is not None)


def batch_shape(config: RunConfig, rows: int, statistics: LengthStatistics) -> Derived[BatchShape]:
    """Derive the static shape of a microbatch of `rows` rows from statistics of the lengths of examples.

    Raises `ProjectError` DAT004 if an example may have more texts than a microbatch has rows.
    """
    length, texts = max_row_length(config), spec_of(config).texts(config)
    if texts > rows:
        raise ProjectError(
            "DAT004",
            f"an example has up to {texts} texts, but a microbatch has {counted(rows, 'row')}",
            f"set trainer.per_device_train_batch_size and per_device_eval_batch_size to {texts} or more",
            "trainer.per_device_train_batch_size",
        )
    if not config.datacollator.pack_sequences:
        shape = BatchShape(rows, length, rows // texts, is_packed=False, texts=texts)
        return Derived(shape, f"{rows} padded rows")
    unit = "documents" if texts == 1 else f"examples of {texts} segments"
    expected = rows * length / statistics.mean
    spread = SPREAD * statistics.std / statistics.mean / sqrt(expected)
    limit = min(SLOT_MULTIPLE * ceil(expected * (1 + spread) / SLOT_MULTIPLE), rows * length)
    return Derived(
        BatchShape(rows, length, limit, is_packed=True, texts=texts),
        f"{limit} {unit}: {expected:.0f} expected ({rows * length:,} tokens / {statistics.mean:.0f} tokens "
        f"each), plus {SPREAD:.0f} standard deviations; plus {rows} for padding",
    )


def with_slots_for_pieces(shape: Derived[BatchShape], length: int | None) -> Derived[BatchShape]:
    """Add slots for pieces of `length` tokens, in all steps, as the shape is static; None adds none."""
    if length is None:
        return shape
    cuts = shape.value.capacity // length
    return Derived(replace(shape.value, cuts=cuts), f"{shape.reason}; plus {cuts} for pieces of documents")


def with_enough_slots(
    shape: Derived[BatchShape], lengths: NDArray[np.int64], packer: Packer
) -> Derived[BatchShape]:
    """Raise the limit on examples of a packed shape until `packer` fills its microbatches.

    `lengths` [N] are lengths of examples in tokens. Widely varying lengths need a higher limit than random
    mixing suggests: some rows hold one long segment, others only short ones. Returns the shape unchanged if a
    higher limit saves hardly any microbatches.
    """
    capacity, first = shape.value.capacity, shape.value.max_examples
    lengths = lengths[:SLOT_SAMPLE_SEGMENTS]
    plan = packer(lengths, capacity, first)
    if _is_nearly_full(plan):
        return shape
    unlimited = packer(lengths, capacity, None)

    def is_enough(plan: PackPlan) -> bool:
        return _is_nearly_full(plan) or plan.num_bins * NEARLY_AS_FEW <= unlimited.num_bins

    if is_enough(plan):
        return shape
    limits = range(first, int(np.diff(unlimited.offsets).max()) + SLOT_MULTIPLE, SLOT_MULTIPLE)
    index = bisect_left(limits, True, key=lambda limit: is_enough(packer(lengths, capacity, limit)))
    limit = limits[min(index, len(limits) - 1)]
    return Derived(
        replace(shape.value, max_examples=limit),
        f"{limit} documents: a limit of {first} would fill only {plan.fill:.1%} of the microbatches' tokens; "
        f"plus {shape.value.rows} for padding",
    )


def _is_nearly_full(plan: PackPlan) -> bool:
    # One bin of a small sample is more than the share that may be empty.
    return is_full(plan) or plan.num_bins <= plan.fewest_bins + 1
