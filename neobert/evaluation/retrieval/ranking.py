"""Exact search by cosine, with equal scores in the order of trec_eval.

Shapes: Q queries, N documents, D hidden size, P queries of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from neobert.encoding.encoder import Embeddings
from neobert.evaluation.retrieval.metrics import DEPTH

QUERIES_AT_ONCE = 256
NUM_RANKED = DEPTH + 1
"""Number of documents retrieved per query: one more than evaluated, since one may be the query itself."""


def rank(
    queries: Embeddings, embeddings: Embeddings, corpus: Mapping[str, str], device: torch.device
) -> list[list[str]]:
    """Return the ids of the `NUM_RANKED` documents with the highest cosine, the best first, for each query.

    Equal scores are ordered by id, descending, as by trec_eval. Documents with the same text have the same
    score. The rows of queries [Q, D] and embeddings [N, D] have unit length.
    """
    documents = F.normalize(torch.from_numpy(embeddings).to(device), dim=-1)
    names = list(corpus)
    positions = _descending_ranks(names)
    copies, originals = _duplicate_documents(corpus)
    found: list[list[str]] = []
    for part in torch.from_numpy(queries).split(QUERIES_AT_ONCE):
        scores = part.to(device) @ documents.T
        # The sums of equal rows may round differently, by the place of each row in the product.
        scores[:, copies] = scores[:, originals]
        found += ([names[index] for index in row] for row in _best_documents(scores, positions))
    return found


def _descending_ranks(names: Sequence[str]) -> NDArray[np.int64]:
    positions = np.empty(len(names), np.int64)
    positions[sorted(range(len(names)), key=names.__getitem__, reverse=True)] = np.arange(len(names))
    return positions


def _duplicate_documents(corpus: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Return the indices of documents that repeat a text, and of the first document with that text."""
    first: dict[str, int] = {}
    sources = [first.setdefault(text, index) for index, text in enumerate(corpus.values())]
    copies = [index for index, source in enumerate(sources) if index != source]
    return copies, [sources[index] for index in copies]


def _best_documents(scores: Tensor, positions: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of the `NUM_RANKED` best documents of each row of scores [P, N].

    Equal scores are ordered by `positions`.
    """
    least = scores.topk(min(NUM_RANKED, scores.shape[1]), dim=-1).values[:, -1:]
    rows, columns = (scores >= least).nonzero(as_tuple=True)  # all that tie with the last one, too
    values = scores[rows, columns].cpu().numpy()
    of_rows, of_columns = rows.cpu().numpy(), columns.cpu().numpy()
    order = np.lexsort((positions[of_columns], -values, of_rows))
    ends = np.searchsorted(of_rows, np.arange(len(scores)), side="right")
    for candidates in np.split(of_columns[order], ends[:-1]):
        yield candidates[:NUM_RANKED]
