"""Rows out of a parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from neobert.data.sources.rows import Row, RowFormat
from neobert.data.sources.unreadable import MARK_BYTES, PARQUET_MARK, check_start, unreadable

KIND = ".parquet"
MOST_ROWS, MOST_BYTES = 1024, 1 << 24


def parquet_rows(handle: IO[bytes], path: Path, rows: RowFormat) -> Iterator[Row]:
    """Yield the rows. Raises DAT001 for a damaged file, DAT011 for its columns."""
    with _parquet(handle, path) as table:
        columns = rows.columns(table.schema_arrow.names, str(path))
        names = list(dict.fromkeys(columns.values()))
        number = 0
        for batch in table.iter_batches(batch_size=_batch_rows(table.metadata), columns=names):
            for cells in zip(*(batch.column(name) for name in names), strict=True):
                number += 1
                values = {name: _value(cell, path, number) for name, cell in zip(names, cells, strict=True)}
                yield rows.row(values, columns, f"{path}, row {number}")


def parquet_columns(handle: IO[bytes], path: Path, rows: RowFormat) -> dict[str, str]:
    """Name the column of each field. Raises as `parquet_rows`."""
    with _parquet(handle, path) as table:
        return rows.columns(table.schema_arrow.names, str(path))


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
