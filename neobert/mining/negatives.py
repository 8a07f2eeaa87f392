"""Choice of hard negatives: the closest documents that are not too close to be answers themselves.

Shapes: Q queries, N documents, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.search.exact import best_rows

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Negatives:
    """Negatives of each query.

    Attributes:
        rows: numbers of documents of each query, the closest first.
        num_too_close: documents that were skipped because they may be answers that no row declares.
    """

    rows: list[list[int]]
    num_too_close: int


def choose_negatives(
    queries: Vectors,
    documents: Vectors,
    answers: Sequence[Sequence[int]],
    excluded: Sequence[set[int]],
    most: int,
    max_share: float,
    device: torch.device,
) -> Negatives:
    """Return the `most` closest documents of each query that score at most `max_share` of its answers.

    The limit is s - |s| * (1 - max_share), where s is the lowest score of the query's answers.

    Args:
        queries, documents: unit vectors [Q, D] and [N, D].
        answers: documents that answer each query, one or more.
        excluded: documents that cannot be negatives of each query, answers included.
    """
    lowest = np.array(
        [(documents[rows] @ query).min() for query, rows in zip(queries, answers, strict=True)], np.float32
    )
    ceilings = (lowest - np.abs(lowest) * (1 - max_share)).astype(np.float32)
    window = most + max(map(len, excluded))
    scores, found = best_rows(queries, documents, window, device)
    closest = [_drop_excluded(each, of) for each, of in zip(found, excluded, strict=True)]
    of_rows = [dict(zip(found[query].tolist(), scores[query], strict=True)) for query in range(len(found))]
    too_close = sum(
        of_rows[query][row] > ceilings[query] for query, rows in enumerate(closest) for row in rows[:most]
    )
    scores, found = best_rows(queries, documents, window, device, ceilings)
    allowed = (rows[np.isfinite(of)] for rows, of in zip(found, scores, strict=True))
    chosen = [_drop_excluded(each, of)[:most] for each, of in zip(allowed, excluded, strict=True)]
    return Negatives(chosen, int(too_close))


def _drop_excluded(rows: NDArray[np.int64], excluded: set[int]) -> list[int]:
    return [row for row in rows.tolist() if row not in excluded]
