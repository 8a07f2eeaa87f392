"""The static shape of a microbatch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from neobert.config.schema import RunConfig
from neobert.data.store.token_store import LengthStatistics
from neobert.data.tokenize.encoding import NUM_MARKERS
from neobert.plan.derived import Derived

# At four standard deviations one bin in tens of thousands is closed for want of a slot. Unused slots cost
# time: the attention kernel walks them.
SPREAD = 4.0
SLOT_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a microbatch holds: `capacity` tokens, at most `max_segments` segments, or `rows` padded rows."""

    rows: int
    row_length: int
    max_segments: int
    is_packed: bool

    @property
    def capacity(self) -> int:
        """Tokens of a packed microbatch."""
        return self.rows * self.row_length

    @property
    def num_slots(self) -> int:
        """Segments that `cu_seqlens` has room for: documents, and the pieces of the padding at the end."""
        return self.max_segments + self.rows


def row_length(config: RunConfig) -> int:
    """Return the length of a row, and with it `max_seqlen`, in tokens."""
    return config.datacollator.max_length or config.dataset.max_seq_length


def segment_length(config: RunConfig) -> int:
    """Return the longest segment in tokens: the tightest of the three bounds."""
    bounds = (config.dataset.max_seq_length, config.datacollator.max_length, config.tokenizer.max_length)
    return min(bound for bound in bounds if bound is not None)


def batch_shape(config: RunConfig, rows: int, statistics: LengthStatistics) -> Derived[BatchShape]:
    """Derive the shape of a microbatch of `rows` rows from the lengths of the text's segments."""
    length = row_length(config)
    if not config.datacollator.pack_sequences:
        return Derived(BatchShape(rows, length, rows, is_packed=False), f"{rows} padded rows")
    expected = rows * length / statistics.mean
    spread = SPREAD * statistics.std / statistics.mean / sqrt(expected)
    most = rows * length // (NUM_MARKERS + 1)
    limit = min(SLOT_MULTIPLE * ceil(expected * (1 + spread) / SLOT_MULTIPLE), most)
    return Derived(
        BatchShape(rows, length, limit, is_packed=True),
        f"{limit} documents: {rows * length:,} tokens / {statistics.mean:.0f} tokens a segment = "
        f"{expected:.0f}, and {SPREAD:.0f} standard deviations; {rows} more slots for padding",
    )
