"""Prepared text on disk: concatenated token ids, and the start of each segment.

A split is the files `<split>.tokens` (uint16 or uint32, little-endian) and `<split>.offsets` (int64,
[N + 1]), and one file `<split>.<name>.column` for each side column; a segment includes its special tokens and
is ready to train on. `manifest.json` is written last, into a folder that is then renamed, so a folder with a
manifest is complete.

Shapes: T tokens, N segments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.atomic_write import NO_ROOM, write_problem
from neobert.data.batches.stateless_random import permuted
from neobert.data.tokenize.encoding import Column, Encoded
from neobert.errors import ProjectError

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
SAMPLE_SEGMENTS = 1 << 16
_MANIFEST_NEEDS = {"fingerprint", "request", "splits", "tokenizer_digest"}
CACHE_ELSEWHERE = "set dataset.cache_dir or NEOBERT_CACHE to a folder on another disk"


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Mean, standard deviation and maximum of segment lengths, in tokens."""

    mean: float
    std: float
    longest: int

    @classmethod
    def of(cls, lengths: NDArray[np.integer]) -> LengthStatistics:
        """Return the statistics of lengths [N]."""
        return cls(float(lengths.mean()), float(lengths.std()), int(lengths.max()))


@dataclass(frozen=True, eq=False)
class TokenStore:
    """Segments of token ids: segment i is `tokens[offsets[i]:offsets[i + 1]]`.

    `columns` are side columns by name, [T] for those in `token_columns`, else [N].
    """

    tokens: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    statistics: LengthStatistics
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    token_columns: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments."""
        return int(self.offsets[-1])

    def lengths(self, segments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of these segments, in tokens."""
        return self.offsets[segments + 1] - self.offsets[segments]

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return the lengths in tokens of a fixed random sample of at most `SAMPLE_SEGMENTS` segments."""
        return self.lengths(permuted(0, 0, min(SAMPLE_SEGMENTS, len(self)), len(self)))

    def is_per_token(self, column: str) -> bool:
        """Return whether a side column has a value per token, not per segment."""
        return column in self.token_columns

    @classmethod
    def of(cls, batches: list[Encoded], columns: Sequence[Column] = ()) -> TokenStore:
        """Build a store in memory from encoded batches with at least one segment in total."""
        lengths = np.concatenate([batch.lengths for batch in batches])
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return cls(
            np.concatenate([batch.tokens for batch in batches]),
            offsets,
            LengthStatistics.of(lengths),
            {each.name: np.concatenate([batch.columns[each.name] for batch in batches]) for each in columns},
            frozenset(each.name for each in columns if each.is_per_token),
        )


class SplitWriter:
    """Writes one split batch by batch, and hashes its files."""

    def __init__(
        self,
        folder: Path,
        split: str,
        dtype: np.dtype[np.unsignedinteger],
        columns: Sequence[Column] = (),
    ) -> None:
        self._folder, self._split, self._declared = folder, split, tuple(columns)
        self._dtype = dtype.newbyteorder("<")
        self._end = 0
        self._square_sum, self._longest, self._segments = 0.0, 0, 0
        with writing(folder), ExitStack() as files:
            self._tokens = files.enter_context(closing(_HashedFile(folder / f"{split}.tokens")))
            self._offsets = files.enter_context(closing(_HashedFile(folder / f"{split}.offsets")))
            self._columns = {
                each.name: files.enter_context(closing(_HashedFile(folder / column_file(split, each.name))))
                for each in columns
            }
            self._offsets.write(np.zeros(1, "<i8"))
            self._files = files.pop_all()

    def append(self, encoded: Encoded) -> None:
        """Write the segments of a batch."""
        ends = self._end + np.cumsum(encoded.lengths)
        with writing(self._folder):
            self._tokens.write(encoded.tokens.astype(self._dtype, copy=False))
            self._offsets.write(ends.astype("<i8"))
            for each in self._declared:
                values = encoded.columns[each.name].astype(_little_endian(each.dtype), copy=False)
                self._columns[each.name].write(values)
        self._end += len(encoded.tokens)
        self._segments += len(encoded.lengths)
        self._square_sum += float(np.square(encoded.lengths, dtype=np.float64).sum())
        self._longest = max(self._longest, int(encoded.lengths.max(initial=0)))

    def finish(self) -> dict[str, Any]:
        """Sync the files to disk and return the split's manifest entry."""
        with writing(self._folder):
            written = (self._tokens, self._offsets, *self._columns.values())
            files = {file.name: file.finish() for file in written}
        mean = self._end / max(1, self._segments)
        variance = max(0.0, self._square_sum / max(1, self._segments) - mean**2)
        return {
            "segments": self._segments,
            "tokens": self._end,
            "dtype": self._dtype.name,
            "lengths": {"mean": mean, "std": variance**0.5, "longest": self._longest},
            "files": files,
            "columns": [asdict(each) for each in self._declared],
        }

    def abandon(self) -> None:
        """Close the files, complete or not."""
        self._files.close()


class _HashedFile:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._handle = path.open("xb")
        self._digest = sha256()
        self._size = 0

    def write(self, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).data.cast("B") if array.size else b""
        self._handle.write(data)
        self._digest.update(data)
        self._size += len(data)

    def finish(self) -> dict[str, Any]:
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._handle.close()
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        # On a full disk the last flush fails too; the folder is removed next.
        with suppress(OSError):
            self._handle.close()


def open_split(folder: Path, split: str, described: dict[str, Any]) -> TokenStore:
    """Map a split into memory. Raises DAT001 for a missing file or a file of the wrong size."""
    for name, file in described["files"].items():
        _check_size(folder / name, file["bytes"])
    tokens = np.memmap(folder / f"{split}.tokens", np.dtype(described["dtype"]).newbyteorder("<"), mode="r")
    offsets = np.memmap(folder / f"{split}.offsets", "<i8", mode="r")
    declared = [Column(**each) for each in described["columns"]]
    columns = {
        each.name: np.asarray(
            np.memmap(folder / column_file(split, each.name), _little_endian(each.dtype), mode="r")
        )
        for each in declared
    }
    return TokenStore(
        np.asarray(tokens),
        np.asarray(offsets),
        LengthStatistics(**described["lengths"]),
        columns,
        frozenset(each.name for each in declared if each.is_per_token),
    )


def column_file(split: str, column: str) -> str:
    """Return the file name of a side column."""
    return f"{split}.{column}.column"


def _little_endian(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest and sync it to disk."""
    with writing(folder), (folder / MANIFEST).open("x", encoding="utf-8") as handle:
        json.dump(manifest, handle, indent=1, sort_keys=True)
        handle.flush()
        os.fsync(handle.fileno())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a manifest. Raises DAT001 for a broken manifest or another format version."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken(path, f"is not a manifest of prepared data: {error}") from error
    if version != FORMAT_VERSION:
        raise _broken(path, f"has format {version}, but this version reads format {FORMAT_VERSION}")
    if missing := sorted(_MANIFEST_NEEDS - manifest.keys()):
        raise _broken(path, f"has no {', '.join(missing)}")
    return dict(manifest)


@contextmanager
def writing(folder: Path, elsewhere: str = CACHE_ELSEWHERE) -> Iterator[None]:
    """Convert an `OSError` in the `with` block to DAT009; the hint suggests `elsewhere`."""
    try:
        yield
    except OSError as error:
        way = "free space" if error.errno in NO_ROOM else "make the folder writable"
        raise ProjectError("DAT009", write_problem(error), f"{way}, or {elsewhere}", str(folder)) from error


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size if path.exists() else None
    if size != expected:
        found = "is missing" if size is None else f"has {size:,} bytes"
        raise _broken(path, f"{found}, but the manifest states {expected:,}")


def _broken(path: Path, message: str) -> ProjectError:
    return ProjectError("DAT001", message, f"remove {path.parent} and prepare the data again", str(path))
