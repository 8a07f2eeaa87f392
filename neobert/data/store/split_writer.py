"""Writer of a split of prepared text, see `neobert.data.store.token_store`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.store.token_store import column_file, convert_write_errors, little_endian
from neobert.data.tokenize.encoding import Column, Encoded


class SplitWriter:
    """Writes one split batch by batch, and hashes its files."""

    def __init__(
        self,
        folder: Path,
        split: str,
        dtype: np.dtype[np.unsignedinteger],
        columns: Sequence[Column] = (),
    ) -> None:
        self._folder, self._declared = folder, tuple(columns)
        self._dtype = dtype.newbyteorder("<")
        self._end = 0
        self._squares, self._longest, self._segments, self._examples = 0, 0, 0, 0
        self._highest_id = -1
        with convert_write_errors(folder), ExitStack() as files:
            self._tokens = files.enter_context(closing(HashedFile(folder / f"{split}.tokens")))
            self._offsets = files.enter_context(closing(HashedFile(folder / f"{split}.offsets")))
            self._columns = {
                each.name: files.enter_context(closing(HashedFile(folder / column_file(split, each.name))))
                for each in columns
            }
            self._offsets.write(np.zeros(1, "<i8"))
            self._files = files.pop_all()

    def append(self, encoded: Encoded) -> None:
        """Write the segments of a batch."""
        ends = self._end + np.cumsum(encoded.lengths)
        with convert_write_errors(self._folder):
            self._tokens.write(encoded.tokens.astype(self._dtype, copy=False))
            self._offsets.write(ends.astype("<i8"))
            for each in self._declared:
                values = encoded.columns[each.name].astype(little_endian(each.dtype), copy=False)
                self._columns[each.name].write(values)
        lengths = encoded.example_lengths
        self._end += len(encoded.tokens)
        self._segments += len(encoded.lengths)
        self._examples += len(lengths)
        self._squares += sum_of_squares(lengths)
        self._highest_id = max(self._highest_id, int(encoded.tokens.max(initial=0)))
        self._longest = max(self._longest, int(lengths.max(initial=0)))

    def finish(self) -> dict[str, Any]:
        """Sync the files to disk and return the split's manifest entry."""
        with convert_write_errors(self._folder):
            written = (self._tokens, self._offsets, *self._columns.values())
            files = {file.name: file.finish() for file in written}
        return {
            "segments": self._segments,
            "tokens": self._end,
            "dtype": self._dtype.name,
            "lengths": length_statistics(self._end, self._squares, self._examples, self._longest),
            "highest_id": self._highest_id,
            "files": files,
            "columns": [asdict(each) for each in self._declared],
        }

    def close(self) -> None:
        """Close the files, complete or not."""
        self._files.close()


def sum_of_squares(lengths: NDArray[np.int64]) -> int:
    """Return the sum of the squared lengths, exactly: it must not depend on batches, blocks or parts."""
    return int(np.square(lengths).sum())


def length_statistics(tokens: int, squares: int, examples: int, longest: int) -> dict[str, Any]:
    """Return the statistics of the lengths of examples from their sums, as JSON values."""
    mean = tokens / max(1, examples)
    variance = max(0.0, squares / max(1, examples) - mean**2)
    return {"mean": mean, "std": variance**0.5, "longest": longest}


class HashedFile:
    """New file whose checksum is computed while it is written."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._handle = path.open("xb")
        self._digest = sha256()
        self._size = 0

    def write(self, array: NDArray[Any]) -> None:
        """Append the values of an array."""
        data = np.ascontiguousarray(array).data.cast("B") if array.size else b""
        self._handle.write(data)
        self._digest.update(data)
        self._size += len(data)

    def finish(self) -> dict[str, Any]:
        """Sync the file to disk and return its size and checksum."""
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._handle.close()
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Close the file, complete or not."""
        # On a full disk the last flush fails too; the folder is removed next.
        with suppress(OSError):
            self._handle.close()
