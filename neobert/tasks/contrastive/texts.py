"""Texts of a microbatch by their role: queries and documents, and a digest of the tokens of each.

Shapes: K texts of a microbatch, padding included; Q queries and M documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.batches.text_digests import text_digests


@dataclass(frozen=True, eq=False)
class Texts:
    """Queries and documents of one or several microbatches, with digests to find copies.

    A document is the positive one of an example, or a hard negative. An example without a labelled query has
    no target, but its documents are negatives of the others.

    Attributes:
        queries: indices of the labelled queries among the texts, int64 [Q].
        targets: index of each query's positive document among the documents, int64 [Q].
        query_digests: digest of each query, int64 [Q].
        documents: indices of the documents among the texts, int64 [M].
        digests: digest of each document, int64 [M].
        owners: digest of the query that a positive document answers; a hard negative's own digest, int64 [M].
    """

    queries: Tensor
    targets: Tensor
    query_digests: Tensor
    documents: Tensor
    digests: Tensor
    owners: Tensor

    @classmethod
    def from_batch(cls, batch: Microbatch) -> Texts:
        """Return the queries and documents of a microbatch on the host, without padding."""
        digests = text_digests(batch)
        groups = batch.groups
        is_text, is_first = groups >= 0, batch.starts_example
        is_positive = torch.cat([is_first.new_tensor([False]), is_first[:-1]]) & is_text & ~is_first
        queries = (is_first & (batch.labels != IGNORED)).nonzero().squeeze(1)
        documents = (is_text & ~is_first).nonzero().squeeze(1)
        owners = torch.where(is_positive, torch.cat([digests.new_zeros(1), digests[:-1]]), digests)
        return cls(
            queries=queries,
            targets=torch.searchsorted(documents, queries + 1),
            query_digests=digests[queries],
            documents=documents,
            digests=digests[documents],
            owners=owners[documents],
        )

    @classmethod
    def join(cls, parts: Sequence[Texts], sizes: Sequence[int]) -> Texts:
        """Concatenate the texts of several microbatches; `sizes` are their numbers of texts."""
        moved, texts, documents = [], 0, 0
        for part, size in zip(parts, sizes, strict=True):
            moved.append(
                cls(
                    queries=part.queries + texts,
                    targets=part.targets + documents,
                    query_digests=part.query_digests,
                    documents=part.documents + texts,
                    digests=part.digests,
                    owners=part.owners,
                )
            )
            texts, documents = texts + size, documents + len(part.documents)
        return cls(*(torch.cat([getattr(each, field.name) for each in moved]) for field in fields(cls)))

    def to(self, device: torch.device) -> Texts:
        """Copy the tensors to a device."""
        return Texts(*(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)))
