"""Record of a block of prepared text: sizes, counts and a checksum.

The checksum is the same in whichever part of a preparation the block is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import numpy as np

from neobert.data.store.split_writer import sum_of_squares
from neobert.data.store.token_store import little_endian
from neobert.data.tokenize.encoding import Counts, Encoded, Encoder
from neobert.runfiles.conversation_faults import Occurrence


class BlockRecord:
    """Sums over the batches of a block."""

    def __init__(self, index: int, key: str, corpus: int, encoder: Encoder) -> None:
        self._place = {"index": index, "key": key, "corpus": corpus}
        self._dtype, self._declared = encoder.dtype.newbyteorder("<"), encoder.columns
        self._digests = [sha256() for _ in range(2 + len(self._declared))]
        self._examples, self._squares, self._longest = 0, 0, 0
        self.counts = Counts()

    def add(self, encoded: Encoded) -> None:
        """Add the sizes, counts and content of a batch."""
        self.counts.add(encoded.counts)
        lengths = encoded.example_lengths
        self._examples += len(lengths)
        self._squares += sum_of_squares(lengths)
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        columns = [encoded.columns[each.name].astype(little_endian(each.dtype)) for each in self._declared]
        values = (encoded.tokens.astype(self._dtype), encoded.lengths.astype("<i8"), *columns)
        for digest, each in zip(self._digests, values, strict=True):
            digest.update(np.ascontiguousarray(each).tobytes())

    def finish(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return self._place | {
            "segments": self.counts.segments,
            "tokens": self.counts.tokens,
            "examples": self._examples,
            "squares": self._squares,
            "longest": self._longest,
            "sha256": sha256(b"".join(each.digest() for each in self._digests)).hexdigest(),
            "counts": {name: value for name, value in asdict(self.counts).items() if value},
        }


def record_counts(record: dict[str, Any]) -> Counts:
    """Parse the counts in a block's record."""
    counts = dict(record["counts"])
    faults = {kind: Occurrence(**each) for kind, each in counts.pop("faults", {}).items()}
    return Counts(**counts, faults=faults)


def sum_counts(records: Sequence[dict[str, Any]]) -> Counts:
    """Return the counts of several blocks, in their order."""
    total = Counts()
    for record in records:
        total.add(record_counts(record))
    return total
