"""Scored documents: their similarities to the query of their example, and the losses. An example with one
scored document is a scored pair; one with several has a teacher's scores.

Shapes: K texts of a microbatch, N scored documents, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.batches.text_digests import first_text_indices, text_scores
from neobert.parallel import World
from neobert.tasks.contrastive.loss import first_components

ABSENT = -1e9
"""Logit of a missing document. It is finite, because -inf times a probability of 0 is NaN."""


@dataclass(frozen=True, eq=False)
class ScoredDocuments:
    """Scored documents of one or several microbatches, grouped by example.

    Attributes:
        queries: index of each document's query among the texts, int64 [N].
        documents: index of each document among the texts, int64 [N].
        scores: fp32 [N].
        sizes: number of scored documents in each document's example, int64 [N].
    """

    queries: Tensor
    documents: Tensor
    scores: Tensor
    sizes: Tensor

    @classmethod
    def from_batch(cls, batch: Microbatch) -> ScoredDocuments:
        """Return the scored documents of a microbatch on the host, except those of unlabelled queries."""
        first, scores = first_text_indices(batch), text_scores(batch)
        is_scored = ~scores.isnan() & (batch.labels[first] != IGNORED)
        documents = is_scored.nonzero().squeeze(1)
        queries = first[documents]
        sizes = torch.bincount(queries, minlength=1)[queries]
        return cls(queries, documents, scores[documents], sizes)

    @classmethod
    def join(cls, parts: Sequence[ScoredDocuments], sizes: Sequence[int]) -> ScoredDocuments:
        """Concatenate the documents of several microbatches; `sizes` are their numbers of texts."""
        moved, texts = [], 0
        for part, size in zip(parts, sizes, strict=True):
            moved.append(replace(part, queries=part.queries + texts, documents=part.documents + texts))
            texts += size
        return cls(*(torch.cat([getattr(each, field.name) for each in moved]) for field in fields(cls)))

    def to(self, device: torch.device) -> ScoredDocuments:
        """Copy the tensors to a device."""
        return ScoredDocuments(
            *(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self))
        )

    def select(self, is_chosen: Tensor) -> ScoredDocuments:
        """Return the documents that a mask [N] selects."""
        return ScoredDocuments(*(getattr(self, field.name)[is_chosen] for field in fields(self)))

    def split_pairs_and_taught(self) -> tuple[ScoredDocuments, ScoredDocuments]:
        """Return the documents of scored pairs, and the documents of examples with a teacher's scores."""
        return self.select(self.sizes == 1), self.select(self.sizes > 1)

    def similarities(self, vectors: Tensor, width: int) -> Tensor:
        """Return the cosine of each document and its query [N], over the first `width` components."""
        cut = first_components(vectors, width)
        return (cut[self.queries] * cut[self.documents]).sum(1)


@dataclass(frozen=True, slots=True)
class ScoreLoss:
    """CoSENT of scored pairs, and KL divergence from a teacher's scores.

    Attributes:
        temperature: divisor of the similarities.
        teacher_temperature: divisor of a teacher's scores.
        widths: numbers of first components; empty: whole vectors only.
    """

    temperature: float
    teacher_temperature: float
    widths: tuple[int, ...] = ()

    def compute(self, world: World, vectors: Tensor, scored: ScoredDocuments) -> tuple[Tensor, Tensor]:
        """Return two losses, averaged over the widths: one for reports, and one to differentiate.

        Both are the distillation loss plus the CoSENT loss over the pairs of all ranks, which the first
        multiplies by this rank's number of pairs, and the second by the number on all ranks.
        """
        pairs, taught = scored.split_pairs_and_taught()
        scores = torch.cat(world.gather_rows(pairs.scores))
        own, all_ranks = [], []
        for width in (*self.widths, vectors.shape[1]):
            similar = torch.cat(world.gather_rows(pairs.similarities(vectors, width)))
            ranked = cosent(similar / self.temperature, scores)
            distillation_loss = self.distillation_loss(taught.similarities(vectors, width), taught)
            own.append(ranked * len(pairs.scores) + distillation_loss)
            all_ranks.append(ranked * len(scores) + distillation_loss)
        return torch.stack(own).mean(), torch.stack(all_ranks).mean()

    def distillation_loss(self, similarities: Tensor, taught: ScoredDocuments) -> Tensor:
        """Return the KL divergence of similarities [N] from a teacher's scores, summed over queries."""
        if not len(similarities):
            return similarities.sum()
        _, query, counts = taught.queries.unique_consecutive(return_inverse=True, return_counts=True)
        position = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
        shape = (len(counts), int(counts.max()))

        def rows(values: Tensor) -> Tensor:
            return values.new_full(shape, ABSENT).index_put((query, position), values)

        student = rows(similarities / self.temperature).log_softmax(1)
        teacher = rows(taught.scores / self.teacher_temperature).softmax(1)
        return F.kl_div(student, teacher, reduction="sum")


def cosent(similarities: Tensor, scores: Tensor) -> Tensor:
    """Return log(1 + sum of exp(s_j - s_i)) over all i and j where pair i has the higher score."""
    scores, order = scores.sort()
    similar = similarities[order]
    # The sum of exp(-s) over higher scores, from the highest down: no matrix of all pairs of pairs.
    higher = torch.logcumsumexp(-similar.flip(0), 0).flip(0)
    higher = torch.cat([higher, higher.new_full((1,), -torch.inf)])
    compared = similar + higher[torch.searchsorted(scores, scores, right=True)]
    return torch.cat([similar.new_zeros(1), compared]).logsumexp(0)
