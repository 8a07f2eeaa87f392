"""Texts out of a parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from neobert.data.sources.columns import choose_column, text_of
from neobert.data.sources.unreadable import MARK_BYTES, PARQUET_MARK, check_start, unreadable

KIND = ".parquet"
MOST_ROWS, MOST_BYTES = 1024, 1 << 24


def parquet_texts(handle: IO[bytes], path: Path, text_column: str | None) -> Iterator[str]:
    """Yield the text of each row. Raises DAT001 for a damaged file, DAT011 for its columns."""
    with _parquet(handle, path) as table:
        column = choose_column(table.schema_arrow.names, text_column, str(path))
        row = 0
        for batch in table.iter_batches(batch_size=_batch_rows(table.metadata), columns=[column]):
            for cell in batch.column(0):
                row += 1
                yield text_of(_value(cell, path, row), column, f"{path}, row {row}")


def parquet_column(handle: IO[bytes], path: Path, text_column: str | None) -> str:
    """Name the text column. Raises as `parquet_texts`."""
    with _parquet(handle, path) as table:
        return choose_column(table.schema_arrow.names, text_column, str(path))


def _batch_rows(metadata: Any) -> int:
    """Return the rows read at once: about `MOST_BYTES` of the row group with the longest rows."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    longest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(MOST_ROWS, int(MOST_BYTES / max(1, longest))))


def _value(cell: Any, path: Path, row: int) -> object:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        raise unreadable(
            f"{path}, row {row}", f"is not UTF-8: {error}", "write the column again as UTF-8"
        ) from error


@contextmanager
def _parquet(handle: IO[bytes], path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_start(handle.read(MARK_BYTES), path, PARQUET_MARK)
    handle.seek(0)
    try:
        yield pq.ParquetFile(handle)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of what the file holds
        raise unreadable(path, f"is not a readable parquet file: {error}", "write it again") from error
