"""Prepared text on disk: concatenated token ids, and the start of each segment.

A split is the files `<split>.tokens` (uint16 or uint32, little-endian) and `<split>.offsets` (int64,
[N + 1]), and one file `<split>.<name>.column` for each side column; a segment includes its special tokens and
is ready to train on. `manifest.json` is written last, into a folder that is then renamed, so a folder with a
manifest is complete.

Shapes: T tokens, N segments of E examples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.atomic_write import NO_ROOM, describe_write_error
from neobert.data.store.segment_store import LengthStatistics, Segments, SegmentStore, positions_in_segments
from neobert.data.tokenize.encoding import GROUP, Column, Encoded, first_segments
from neobert.errors import ProjectError
from neobert.runfiles.prepared_parts import MANIFEST, PART_FORMAT

FORMAT_VERSION = 3
FORMATS = (FORMAT_VERSION, PART_FORMAT)
_MANIFEST_NEEDS = {"fingerprint", "request", "splits", "tokenizer_digest"}
CACHE_ELSEWHERE = "set dataset.cache_dir or NEOBERT_CACHE to a folder on another disk"


@dataclass(frozen=True, eq=False)
class TokenStore(SegmentStore):
    """Segments of token ids: segment i is `tokens[offsets[i]:offsets[i + 1]]`.

    An example is a segment or, with the column `GROUP`, several consecutive ones.
    `columns` are side columns by name, [T] for a name in `token_columns`, else [N].
    """

    tokens: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    statistics: LengthStatistics
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    token_columns: frozenset[str] = frozenset()

    def __len__(self) -> int:
        """Return the number of examples."""
        return self.num_segments if self._example_bounds is None else len(self._example_bounds) - 1

    @property
    def num_segments(self) -> int:
        """Number of segments in all examples."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all segments."""
        return int(self.offsets[-1])

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the side columns."""
        return tuple(self.columns)

    def column(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield all values of a side column, as one array."""
        yield self.columns[name]

    def highest_id(self) -> int:
        """Read all tokens and return the largest id."""
        return int(self.tokens.max(initial=0))

    @cached_property
    def _example_bounds(self) -> NDArray[np.int64] | None:
        """First segment of each example, then N, int64 [E + 1]; None if every segment is an example."""
        group = self.columns.get(GROUP)
        return None if group is None else np.append(first_segments(group), self.num_segments)

    def _first_segments(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        return examples if self._example_bounds is None else self._example_bounds[examples]

    def lengths(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of these examples, in tokens."""
        return self.offsets[self._first_segments(examples + 1)] - self.offsets[self._first_segments(examples)]

    def segment(self, number: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens of one segment."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]

    def example(self, number: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens of one example."""
        first, stop = self.offsets[self._first_segments(np.array([number, number + 1]))]
        return self.tokens[first:stop]

    def gather(self, examples: NDArray[np.int64], sample_offset: int | NDArray[np.int64] = 0) -> Segments:
        """Read the segments of these examples, int64 [n]; n may be 0.

        The sample id of a segment is its number plus `sample_offset`, one for all examples or int64 [n].
        """
        firsts = self._first_segments(examples)
        sizes = self._first_segments(examples + 1) - firsts
        segments = np.repeat(firsts, sizes) + positions_in_segments(sizes)
        lengths = self.offsets[segments + 1] - self.offsets[segments]
        positions = positions_in_segments(lengths)
        tokens = np.repeat(self.offsets[segments], lengths) + positions
        return Segments(
            ids=self.tokens[tokens].astype(np.int64),
            positions=positions,
            samples=segments + np.repeat(np.broadcast_to(sample_offset, len(examples)), sizes),
            groups=np.repeat(np.arange(len(examples)), sizes),
            lengths=lengths,
            columns={
                name: values[tokens if self.is_per_token(name) else segments]
                for name, values in self.columns.items()
            },
        )

    def is_per_token(self, column: str) -> bool:
        """Return whether a side column has a value per token, not per segment."""
        return column in self.token_columns

    @classmethod
    def from_batches(cls, batches: list[Encoded], columns: Sequence[Column] = ()) -> TokenStore:
        """Build a store in memory from encoded batches with at least one segment in total."""
        lengths = np.concatenate([batch.lengths for batch in batches])
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return cls(
            np.concatenate([batch.tokens for batch in batches]),
            offsets,
            LengthStatistics.from_lengths(np.concatenate([batch.example_lengths for batch in batches])),
            {each.name: np.concatenate([batch.columns[each.name] for batch in batches]) for each in columns},
            frozenset(each.name for each in columns if each.is_per_token),
        )


def open_split(folder: Path, split: str, described: dict[str, Any]) -> TokenStore:
    """Map a split into memory. Raises DAT001 for a missing file or a file of the wrong size."""
    for name, file in described["files"].items():
        check_size(folder / name, file["bytes"])
    tokens = np.memmap(folder / f"{split}.tokens", np.dtype(described["dtype"]).newbyteorder("<"), mode="r")
    offsets = np.memmap(folder / f"{split}.offsets", "<i8", mode="r")
    declared = [Column(**each) for each in described["columns"]]
    columns = {
        each.name: np.asarray(
            np.memmap(folder / column_file(split, each.name), little_endian(each.dtype), mode="r")
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


def little_endian(dtype: str) -> np.dtype[Any]:
    """Return a type in the byte order of files."""
    return np.dtype(dtype).newbyteorder("<")


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest and sync it to disk."""
    with convert_write_errors(folder), (folder / MANIFEST).open("x", encoding="utf-8") as handle:
        json.dump(manifest, handle, indent=1, sort_keys=True)
        handle.flush()
        os.fsync(handle.fileno())


def read_manifest(folder: Path, formats: Sequence[int] = (FORMAT_VERSION,)) -> dict[str, Any]:
    """Read a manifest. Raises DAT001 for a broken manifest or a format that is none of `formats`."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken_file_error(path, f"is not a manifest of prepared data: {error}") from error
    if version not in formats:
        readable = " and ".join(map(str, formats))
        raise _broken_file_error(path, f"has format {version}, but this version reads format {readable}")
    if missing := sorted(_MANIFEST_NEEDS - manifest.keys()):
        raise _broken_file_error(path, f"has no {', '.join(missing)}")
    return dict(manifest)


@contextmanager
def convert_write_errors(folder: Path, elsewhere: str = CACHE_ELSEWHERE) -> Iterator[None]:
    """Convert an `OSError` in the `with` block to DAT009; the hint suggests `elsewhere`."""
    try:
        yield
    except OSError as error:
        way = "free space" if error.errno in NO_ROOM else "make the folder writable"
        raise ProjectError(
            "DAT009", describe_write_error(error), f"{way}, or {elsewhere}", str(folder)
        ) from error


def check_size(path: Path, expected: int) -> None:
    """Raise DAT001 for a missing file or a file of another size."""
    size = path.stat().st_size if path.exists() else None
    if size != expected:
        found = "is missing" if size is None else f"has {size:,} bytes"
        raise _broken_file_error(path, f"{found}, but the manifest states {expected:,}")


def _broken_file_error(path: Path, message: str) -> ProjectError:
    return ProjectError("DAT001", message, f"remove {path.parent} and prepare the data again", str(path))
