"""InfoNCE: cross-entropy of each query's document among the documents of a step.

Shapes: Q queries, M documents of all microbatches and ranks, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.parallel import World
from neobert.tasks.contrastive.texts import Texts

CHUNK = 4096
"""Number of queries whose similarities are in memory at once."""


class Candidates(NamedTuple):
    """Documents that queries are compared with.

    Attributes:
        vectors: normalized vectors [M, D].
        digests: digest of each text, int64 [M].
        owners: digest of the query that a positive document answers, int64 [M].
    """

    vectors: Tensor
    digests: Tensor
    owners: Tensor


class Queries(NamedTuple):
    """Queries, with the index of each query's answer among the candidates.

    Attributes:
        vectors: normalized vectors [Q, D].
        digests: digest of each text, int64 [Q].
        targets: int64 [Q].
    """

    vectors: Tensor
    digests: Tensor
    targets: Tensor

    def chunks(self) -> Iterator[Queries]:
        """Yield the queries in chunks of at most `CHUNK`."""
        for each in zip(*(values.split(CHUNK) for values in self), strict=True):
            yield Queries(*each)


class Similarities(NamedTuple):
    """Similarities of queries and candidates.

    Attributes:
        logits: cosine similarities divided by the temperature, fp32 [Q, M]; false negatives have -inf.
        num_false: number of false negatives of all queries.
    """

    logits: Tensor
    num_false: Tensor


def gather_texts(world: World, vectors: Tensor, texts: Texts) -> tuple[Queries, Candidates, slice]:
    """Return this rank's queries, all ranks' documents, and the slice of this rank's own documents.

    `vectors` [K, D] represent this rank's texts; the results carry no gradient.
    """
    rows = world.gather_rows(vectors.detach()[texts.documents])
    first = sum(map(len, rows[: world.rank]))
    candidates = Candidates(
        torch.cat(rows),
        torch.cat(world.gather_rows(texts.digests)),
        torch.cat(world.gather_rows(texts.owners)),
    )
    queries = Queries(vectors.detach()[texts.queries], texts.query_digests, texts.targets + first)
    return queries, candidates, slice(first, first + len(texts.documents))


def similarities(queries: Queries, candidates: Candidates, temperature: float) -> Similarities:
    """Return the similarities of queries and candidates, with -inf for false negatives.

    A false negative is a document with the text of the query or of its answer, or that answers another query
    with the same text.
    """
    logits = queries.vectors @ candidates.vectors.T / temperature
    answers = candidates.digests[queries.targets]
    is_false = candidates.digests == answers[:, None]
    is_false |= candidates.digests == queries.digests[:, None]
    is_false |= candidates.owners == queries.digests[:, None]
    is_false.scatter_(1, queries.targets[:, None], False)
    return Similarities(logits.masked_fill(is_false, -torch.inf), is_false.sum())


@dataclass(frozen=True, slots=True)
class InfoNCELoss:
    """InfoNCE, averaged over whole vectors and their first components (Matryoshka, arXiv:2205.13147).

    Attributes:
        widths: numbers of first components; empty: whole vectors only.
    """

    temperature: float
    widths: tuple[int, ...] = ()

    def compute(self, queries: Queries, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return the summed loss of queries, and the number of their false negatives."""
        losses = []
        for width in (*self.widths, candidates.vectors.shape[1]):
            anchors, offered = (first_components(each.vectors, width) for each in (queries, candidates))
            found = similarities(
                queries._replace(vectors=anchors), candidates._replace(vectors=offered), self.temperature
            )
            losses.append(info_nce(found, queries.targets))
        return torch.stack(losses).mean(), found.num_false


def first_components(vectors: Tensor, width: int) -> Tensor:
    """Return the first `width` components of normalized vectors [N, D], normalized again if cut."""
    return vectors if width == vectors.shape[1] else F.normalize(vectors[:, :width], dim=-1)


def info_nce(similarities: Similarities, targets: Tensor) -> Tensor:
    """Sum the cross-entropy of each query's target over the candidates."""
    return F.cross_entropy(similarities.logits, targets, reduction="sum")
