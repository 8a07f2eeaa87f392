"""Loss, accuracy and mean reciprocal rank among all documents of the evaluation.

They do not depend on the batch size or the number of ranks: each query is compared with every document.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.parallel import World
from neobert.tasks.contrastive.loss import gathered, info_nce, similarities
from neobert.tasks.contrastive.texts import Texts


class RankMetrics:
    """Vectors of the texts of an evaluation, on the device."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._vectors: list[Tensor] = []
        self._texts: list[Texts] = []

    def add(self, score: Tensor, batch: Microbatch) -> None:
        """Add the vectors of a microbatch, without those of padding."""
        self._vectors.append(score[: batch.num_segments].float())
        self._texts.append(Texts.of(batch))

    def values(self, world: World) -> dict[str, float | None]:
        """Return the means over the queries of all ranks; all are None without queries.

        A document that is as similar as the answer is ranked before it, so equal vectors have no accuracy.
        """
        names = ("eval/loss", "eval/accuracy", "eval/mrr")
        vectors = torch.cat(self._vectors)
        texts = Texts.joined(self._texts, [len(each) for each in self._vectors]).to(vectors.device)
        queries, candidates, _ = gathered(world, vectors, texts)
        sums = torch.zeros(len(names), dtype=torch.float64, device=vectors.device)
        for chunk in queries.chunks():
            found = similarities(chunk, candidates, self._temperature)
            answer = found.logits.gather(1, chunk.targets[:, None])
            rank = (found.logits >= answer).sum(1)
            sums += torch.stack(
                [info_nce(found, chunk.targets).double(), (rank == 1).sum(), (1 / rank).sum()]
            )
        (num_queries,) = world.sum_over_ranks([len(texts.queries)])
        totals = world.add_up(sums).tolist()
        return {
            name: total / num_queries if num_queries else None
            for name, total in zip(names, totals, strict=True)
        }
