"""Documents out of one file: `.txt`, `.jsonl` or `.parquet`, each plain or `.gz`.

A document of a `.txt` file is a run of lines between blank lines. A file without blank lines is one long
run, which `dataset.long_documents` then cuts to the context; runs beyond `MAX_RUN_CHARACTERS` are cut there
first, at the end of a line, so that no file has to fit in memory. A row of the other kinds is a document.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

from neobert.data.columns import choose_column, text_of
from neobert.errors import ProjectError

KINDS = (".txt", ".jsonl", ".parquet")
MAX_RUN_CHARACTERS = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_END_BYTES = 2**16
_UTF_16 = ("is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 {name}")
_OTHER_MARKS = {
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
    b"\x1f\x8b": ("is gzip, and its name does not say so", "name it {name}.gz"),
    b"\x28\xb5\x2f\xfd": ("is zstd", "unpack it: zstd -d"),
}


def kind_of(path: Path) -> str | None:
    """Return `.txt`, `.jsonl` or `.parquet`, or None for a file that holds none of them."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in KINDS else None


def read_documents(path: Path, text_column: str | None) -> Iterator[str]:
    """Yield the documents of a file in order.

    Raises DAT001 for what cannot be read, DAT011 for its columns.
    """
    kind = kind_of(path)
    assert kind is not None, path
    with _opened(path) as handle:
        if kind == ".txt":
            yield from _paragraphs(handle, path)
        elif kind == ".jsonl":
            yield from _json_rows(handle, path, text_column)
        else:
            yield from _parquet_rows(handle, path, text_column)


def column_of(path: Path, text_column: str | None) -> str | None:
    """Name the column that holds the first document; None for a file without columns or rows.

    Raises as `read_documents` does.
    """
    kind = kind_of(path)
    if kind == ".txt":
        return None
    with _opened(path) as handle:
        if kind == ".parquet":
            return _parquet_column(handle, path, text_column)
        rows = ((number, line) for number, line in _lines(handle, path) if line.strip())
        for number, line in rows:
            place = f"{path}:{number}"
            return choose_column(_json_object(line, place), text_column, place)
    return None


def digest_of_ends(path: Path) -> str:
    """Hash the first and the last 64 KiB of a file. Raises DAT001 where it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_END_BYTES)
            file.seek(max(len(head), os.fstat(file.fileno()).st_size - _END_BYTES))
            return blake2b(head + file.read(), digest_size=16).hexdigest()
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> ProjectError:
    return _unreadable(path, f"cannot be read: {error.strerror or error}", "check path and rights")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for its bytes, parquet for seeking too; say in our words what cannot be read."""
    try:
        with _unpacked(path) as handle:
            yield handle
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unreadable(
            path, f"the gzip data is broken or cut short ({error})", "copy the file again"
        ) from error
    except OSError as error:
        raise _refused(path, error) from error


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    is_packed = path.suffix.lower() == ".gz"
    with gzip.open(path, "rb") if is_packed else path.open("rb") as handle:
        if not is_packed or kind_of(path) != ".parquet":
            yield handle  # type: ignore[misc]
            return
        with tempfile.TemporaryFile() as seekable:
            copyfileobj(handle, seekable)
            yield seekable


def _lines(handle: IO[bytes], path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines of UTF-8, a byte order mark dropped."""
    for number, raw in enumerate(handle, 1):
        if number == 1:
            _check_text(raw, path)
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _unreadable(
                f"{path}:{number}",
                f"is not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}",
                f"convert it, for example: iconv -f LATIN1 -t UTF-8 {path.name}",
            ) from error


def _check_text(start: bytes, path: Path) -> None:
    for mark, (message, hint) in _OTHER_MARKS.items():
        if start.startswith(mark):
            raise _unreadable(path, message, hint.format(name=path.name))


def _paragraphs(handle: IO[bytes], path: Path) -> Iterator[str]:
    run: list[str] = []
    size = 0
    for _, line in _lines(handle, path):
        is_blank = not line.strip()
        if run and (is_blank or size + len(line) > MAX_RUN_CHARACTERS):
            yield "".join(run).strip("\r\n")
            run, size = [], 0
        if not is_blank:
            run.append(line)
            size += len(line)
    if run:
        yield "".join(run).strip("\r\n")


def _json_rows(handle: IO[bytes], path: Path, text_column: str | None) -> Iterator[str]:
    column = None
    for number, line in _lines(handle, path):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        row = _json_object(line, place)
        if column is None or column not in row:
            column = choose_column(row, text_column or column, place)
        text = text_of(row[column], column, place)
        # JSON can spell half of a surrogate pair, which no encoding can write.
        yield text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if "\\u" in line else text


def _json_object(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _unreadable(place, f"is not JSON: {error}", "write one JSON object a line") from error
    if not isinstance(row, dict):
        raise _unreadable(
            place, f"is a JSON {type(row).__name__}, not an object", "write one JSON object a line"
        )
    return row


def _parquet_rows(handle: IO[bytes], path: Path, text_column: str | None) -> Iterator[str]:
    with _parquet(handle, path) as table:
        column = choose_column(table.schema_arrow.names, text_column, str(path))
        row = 0
        for batch in table.iter_batches(batch_size=1024, columns=[column]):
            for cell in batch.column(0):
                row += 1
                yield text_of(_value(cell, path, row), column, f"{path}, row {row}")


def _value(cell: Any, path: Path, row: int) -> object:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        raise _unreadable(
            f"{path}, row {row}", f"is not UTF-8: {error}", "write the column again as UTF-8"
        ) from error


def _parquet_column(handle: IO[bytes], path: Path, text_column: str | None) -> str:
    with _parquet(handle, path) as table:
        return choose_column(table.schema_arrow.names, text_column, str(path))


@contextmanager
def _parquet(handle: IO[bytes], path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        yield pq.ParquetFile(handle)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of what the file holds
        raise _unreadable(path, f"is no readable parquet file: {error}", "write it again") from error


def _unreadable(place: Path | str, message: str, hint: str) -> ProjectError:
    return ProjectError("DAT001", message, hint, str(place))
