"""Token ids that datatrove's DocumentTokenizer wrote: NAME.ds, with NAME.ds.index and NAME.ds.metadata.

A shard holds the ids of its documents one after another, uint16 or uint32. Its index has the end of each
document in tokens, uint64; its metadata, the path of the tokenizer with the bytes per id, and the number of
tokens. All are little-endian. A task that was killed leaves a shard without the other two.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

from neobert.data.sources.rows import TEXT, Row
from neobert.data.sources.unreadable import unopened_error, unreadable_error
from neobert.errors import ProjectError

_TYPES = {"2": "H", "4": "I"}
_MAX_METADATA_BYTES = 1 << 16


class TokenText(str):
    """Token ids of a document, as decimal numbers with commas between them.

    As text, the ids are compared, hashed and counted like other documents; encoders use the ids unchanged.
    """

    __slots__ = ()

    @classmethod
    def from_ids(cls, ids: Iterable[int]) -> TokenText:
        """Build the text of token ids."""
        return cls(",".join(map(str, ids)))

    def ids(self) -> list[int]:
        """Return the token ids."""
        return list(map(int, self.split(","))) if self else []


@dataclass(frozen=True, slots=True)
class TokenShard:
    """A complete shard. `ends` are the ends of its documents, in tokens."""

    path: Path
    type_code: str
    ends: array[int]

    @classmethod
    def open(cls, path: Path) -> TokenShard:
        """Read the index and the metadata of a shard. Raises DAT001 if it is not complete."""
        try:
            type_code, count = _read_metadata(path)
            ends = _from_little_endian("Q", path.with_name(f"{path.name}.index").read_bytes())
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise _incomplete_shard_error(path, f"{Path(error.filename).name} is missing") from None
        except (ValueError, IndexError, KeyError) as error:
            raise _incomplete_shard_error(
                path, f"its index or metadata is damaged ({type(error).__name__})"
            ) from None
        except OSError as error:
            raise unopened_error(path, error) from error
        last, width = (ends[-1] if ends else 0), array(type_code).itemsize
        if any(end < start for start, end in pairwise(ends)):
            raise _incomplete_shard_error(
                path, "the ends of documents in its index are not in ascending order"
            )
        if size != last * width:
            message = f"it has {size:,} bytes, but its index ends at {last:,} tokens of {width} bytes"
            raise _incomplete_shard_error(path, message)
        if count != last:
            raise _incomplete_shard_error(
                path, f"its index ends at {last:,} tokens, but its metadata counts {count:,}"
            )
        return cls(path, type_code, ends)

    def document(self, file: IO[bytes], number: int) -> array[int]:
        """Read the ids of a document from the opened file of the shard."""
        start = self.ends[number - 1] if number else 0
        width = array(self.type_code).itemsize
        file.seek(start * width)
        return _from_little_endian(self.type_code, file.read((self.ends[number] - start) * width))


def shard_rows(path: Path) -> Iterator[Row]:
    """Yield the documents of a shard in order. Raises DAT001 if it is not complete."""
    shard = TokenShard.open(path)
    with path.open("rb") as file:
        for number in range(len(shard.ends)):
            yield {TEXT: TokenText.from_ids(shard.document(file, number))}


def _read_metadata(path: Path) -> tuple[str, int]:
    """Return the `array` type code of the ids, and the number of tokens."""
    with path.with_name(f"{path.name}.metadata").open("rb") as file:
        lines = file.read(_MAX_METADATA_BYTES).decode("utf-8").split("\n")
    return _TYPES[lines[0].rpartition("|")[2]], int(lines[1])


def _from_little_endian(type_code: str, data: bytes) -> array[int]:
    values = array(type_code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _incomplete_shard_error(path: Path, fault: str) -> ProjectError:
    hint = f"repeat the datatrove task that writes {path.name}, or remove {path.name}"
    return unreadable_error(path, f"is an unfinished shard of datatrove: {fault}", hint)
