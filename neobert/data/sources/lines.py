"""Lines of UTF-8 text, read in blocks, so that long lines need not fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from neobert.data.sources.unreadable import check_start, undecodable_error, unreadable_error

BLOCK_BYTES = 1 << 20
MAX_LINE_CHARACTERS = 1 << 26
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LinePiece(NamedTuple):
    """A line with its line end, or a piece of about `BLOCK_BYTES` of a longer line; lines count from 1."""

    number: int
    text: str
    is_start: bool
    is_end: bool


def line_pieces(handle: IO[bytes], path: Path, *, joins_blank: bool = False) -> Iterator[LinePiece]:
    """Yield lines in pieces, without a byte order mark. Raises DAT001 for text that is not UTF-8.

    A line ends with LF, or with CR in a file whose first block has CR and no LF. With `joins_blank`, the
    lines of a block without text are one piece: one by one, a million blank lines take a second.
    """
    number, column = 1, 0
    for raw, num_ends in _raw_pieces(handle, path, joins_blank=joins_blank):
        is_end = num_ends > 0
        if number == 1 and column == 0:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise undecodable_error(raw, error.start, path, number, column) from error
        yield LinePiece(number, text, column == 0, is_end)
        number, column = (number + num_ends, 0) if is_end else (number, column + len(raw))


def line_end(block: bytes) -> bytes:
    """Return the byte that ends the lines of a file with this first block: LF, or CR if it has no LF."""
    return b"\r" if b"\r" in block[:-1] and b"\n" not in block else b"\n"


def whole_lines(pieces: Iterable[LinePiece], path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, line with its line end). Raises DAT001 for a line longer than `MAX_LINE_CHARACTERS`."""
    parts: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece.text)
        if size > MAX_LINE_CHARACTERS:
            raise unreadable_error(
                f"{path}:{piece.number}",
                f"the line is longer than {MAX_LINE_CHARACTERS:,} characters",
                "write one row per line, or put one long text into a .txt file",
            )
        parts.append(piece.text)
        if piece.is_end:
            line, parts, size = "".join(parts), [], 0
            yield piece.number, line


def _raw_pieces(handle: IO[bytes], path: Path, *, joins_blank: bool) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes, number of lines that end with them), in pieces of at most about two blocks.

    `joins_blank` as in `line_pieces`. Raises DAT001 like `check_start`.
    """
    block = handle.read(BLOCK_BYTES)
    check_start(block, path)
    end = line_end(block)
    rest, is_inside = b"", False
    while block:
        text = rest + block
        stop = text.rfind(end) + 1
        if joins_blank and stop and not is_inside and text.isspace():
            yield text[:stop], text.count(end)
            rest, block = text[stop:], handle.read(BLOCK_BYTES)
            continue
        *lines, rest = text.split(end)
        for line in lines:
            yield line + end, 1
        is_inside = is_inside and not lines
        if len(rest) > BLOCK_BYTES:
            stop = _character_start(rest, BLOCK_BYTES)
            yield rest[:stop], 0
            rest, is_inside = rest[stop:], True
        block = handle.read(BLOCK_BYTES)
    if rest:
        yield rest, 1


def _character_start(raw: bytes, offset: int) -> int:
    """Return the last offset up to `offset` at which a UTF-8 character starts."""
    start = offset
    while start > offset - 4 and raw[start] & 0xC0 == 0x80:
        start -= 1
    return start
