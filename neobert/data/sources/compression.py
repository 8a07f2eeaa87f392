"""Files that are compressed as a whole: `.gz`, `.bz2`, `.xz` and `.zst`."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

from neobert.data.sources.unreadable import unreadable

COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}


@contextmanager
def opened(path: Path, *, seekable: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for its decompressed bytes. Raises DAT001 for what cannot be read.

    A compressed file that has to be seekable is decompressed into a temporary file.
    """
    compression = path.suffix.lower()
    try:
        with _decompressing(path, compression) as handle:
            if compression not in COMPRESSIONS or not seekable:
                yield handle
                return
            with tempfile.TemporaryFile() as copy:
                copyfileobj(handle, copy)
                copy.seek(0)
                yield copy
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        # The decompressors of bz2 and zstd report damaged data as an OSError without a number.
        if error.errno is None and compression in COMPRESSIONS:
            raise _damaged(path, error) from error
        raise unreadable(
            path, f"cannot be read: {error.strerror or error}", "check path and permissions"
        ) from error


def _decompressing(path: Path, compression: str) -> Any:
    if compression == ".gz":
        return gzip.open(path, "rb")
    if compression == ".bz2":
        return bz2.open(path, "rb")
    if compression == ".xz":
        return lzma.open(path, "rb")
    if compression == ".zst":
        import pyarrow as pa

        return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
    return path.open("rb")


def _damaged(path: Path, error: Exception) -> Exception:
    name = COMPRESSIONS[path.suffix.lower()]
    return unreadable(path, f"the {name} data is broken or cut short ({error})", "copy the file again")
