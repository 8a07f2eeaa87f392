"""Exact cosine search in blocks; the documents may exceed memory.

Shapes: Q queries, N documents, D hidden size, K documents found.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK_ROWS = 4096
QUERIES_AT_ONCE = 1024
TIE_DIGITS = 6
"""Decimal digits in which scores are compared, since equal texts in different blocks round differently."""


def best_rows(
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    most: int,
    device: torch.device,
    ceilings: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scores and rows [Q, K] of the documents with the highest dot product, the best first.

    K is `most`, or N if that is less. Equal scores are in the order of rows. Raises `OSError` if the file of
    mapped documents ends early.

    Args:
        documents: [N, D]; for a memory-mapped file, only one block is in memory.
        ceilings: [Q] maximum score per query; higher scores become -inf. None: no maximum.
    """
    sources = torch.from_numpy(queries).to(device)
    most = min(most, len(documents))
    limits = None if ceilings is None else torch.from_numpy(ceilings).to(device)[:, None]
    scores = torch.full((len(queries), most), -torch.inf, device=device)
    rows = torch.zeros((len(queries), most), dtype=torch.int64, device=device)
    for start, block in _document_blocks(documents):
        columns = torch.from_numpy(block).to(device).T
        for place in range(0, len(queries), QUERIES_AT_ONCE):
            part = slice(place, place + QUERIES_AT_ONCE)
            products = sources[part] @ columns
            if limits is not None:
                products.masked_fill_(products > limits[part], -torch.inf)
            found = products.topk(min(most, len(block)), dim=1)
            merged = torch.cat([scores[part], found.values], 1).topk(most, dim=1)
            known = torch.cat([rows[part], found.indices + start], 1)
            scores[part], rows[part] = merged.values, known.gather(1, merged.indices)
    return _sort_results(scores, rows)


def _document_blocks(documents: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the first row of each block, and the block, which is valid until the next one.

    Raises `OSError` if a mapped file ends early.

    The blocks of a mapped file are read into one buffer: pages of the mapping would count as memory of the
    process, and reading takes half the time of mapping each block.
    """
    starts = range(0, len(documents), BLOCK_ROWS)
    if not isinstance(documents, np.memmap):
        yield from ((start, documents[start : start + BLOCK_ROWS]) for start in starts)
        return
    buffer = np.empty((min(BLOCK_ROWS, len(documents)), *documents.shape[1:]), np.float32)
    with Path(str(documents.filename)).open("rb") as file:
        file.seek(documents.offset)
        for start in starts:
            block = buffer[: len(documents) - start]
            if file.readinto(block.data.cast("B")) != block.nbytes:
                raise OSError(errno.EIO, "the file ends early", str(documents.filename))
            yield start, block


def _sort_results(scores: Tensor, rows: Tensor) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    values, places = scores.cpu().numpy(), rows.cpu().numpy()
    order = np.lexsort((places, -values.round(TIE_DIGITS)), axis=1)
    return np.take_along_axis(values, order, 1), np.take_along_axis(places, order, 1)
