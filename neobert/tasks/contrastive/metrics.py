"""Ranks of answers among all documents of the evaluation, and correlations of similarities with scores.

The metrics do not depend on batch size or number of ranks: each query is compared with every document.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.text_digests import without_scored_examples
from neobert.metric_names import EVAL_LOSS
from neobert.parallel import World
from neobert.tasks.contrastive.loss import gather_texts, info_nce, similarities
from neobert.tasks.contrastive.scored import ScoredDocuments, ScoreLoss
from neobert.tasks.contrastive.texts import Texts
from neobert.tasks.correlation import correlation_metrics

OF_RANKS = (EVAL_LOSS, "eval/accuracy", "eval/mrr")


class PairMetrics:
    """Text vectors of an evaluation, on the device."""

    def __init__(self, temperature: float, score_loss: ScoreLoss | None = None) -> None:
        self._temperature, self._of_scores = temperature, score_loss
        self._vectors: list[Tensor] = []
        self._texts: list[Texts] = []
        self._scored: list[ScoredDocuments] = []
        self._num_plain = 0

    def add(self, score: Tensor, batch: Microbatch) -> None:
        """Add a microbatch's vectors, except padding."""
        self._vectors.append(score[: batch.num_segments].float())
        self._texts.append(Texts.from_batch(without_scored_examples(batch, keeps_taught=True)))
        self._num_plain += len(Texts.from_batch(without_scored_examples(batch)).queries)
        if self._of_scores is not None:
            self._scored.append(ScoredDocuments.from_batch(batch))

    def values(self, world: World) -> dict[str, float | None]:
        """Return loss and ranks of answers over all ranks, and correlations if scores are read.

        The loss is InfoNCE if there are pairs without scores, else the score loss; None without texts.
        """
        vectors, sizes = torch.cat(self._vectors), [len(each) for each in self._vectors]
        found = self._ranking_metrics(world, vectors, Texts.join(self._texts, sizes).to(vectors.device))
        if self._of_scores is None:
            return found
        scored = ScoredDocuments.join(self._scored, sizes).to(vectors.device)
        with_scores = self._score_metrics(world, self._of_scores, vectors, scored)
        (num_plain,) = world.sum_over_ranks([self._num_plain])
        merged = with_scores | found if num_plain else found | with_scores
        return {name: value for name, value in merged.items() if value is not None or name == EVAL_LOSS}

    def _ranking_metrics(self, world: World, vectors: Tensor, texts: Texts) -> dict[str, float | None]:
        """Return loss, accuracy and mean reciprocal rank over all ranks; each is None without queries.

        A document as similar as the answer is ranked above it, so identical vectors have accuracy 0.
        """
        queries, candidates, _ = gather_texts(world, vectors, texts)
        sums = torch.zeros(len(OF_RANKS), dtype=torch.float64, device=vectors.device)
        for chunk in queries.chunks():
            found = similarities(chunk, candidates, self._temperature)
            answer = found.logits.gather(1, chunk.targets[:, None])
            rank = (found.logits >= answer).sum(1)
            sums += torch.stack(
                [info_nce(found, chunk.targets).double(), (rank == 1).sum(), (1 / rank).sum()]
            )
        (num_queries,) = world.sum_over_ranks([len(texts.queries)])
        totals = world.all_reduce_sum(sums).tolist()
        return {
            name: total / num_queries if num_queries else None
            for name, total in zip(OF_RANKS, totals, strict=True)
        }

    def _score_metrics(
        self, world: World, loss: ScoreLoss, vectors: Tensor, scored: ScoredDocuments
    ) -> dict[str, float | None]:
        pairs, _ = scored.split_pairs_and_taught()
        own, _ = loss.compute(world, vectors, scored)
        (num_queries,) = world.sum_over_ranks([len(scored.queries.unique())])
        total = float(world.all_reduce_sum(own.double()))
        found = torch.stack([pairs.similarities(vectors, vectors.shape[1]), pairs.scores], 1).double()
        payloads = world.gather(found.cpu().numpy().tobytes())

        def correlations() -> dict[str, float | None]:
            values = np.concatenate([np.frombuffer(each).reshape(-1, 2) for each in payloads])
            return correlation_metrics(values[:, 0], values[:, 1])

        mean = total / num_queries if num_queries else None
        return {EVAL_LOSS: mean, **world.on_main(correlations)}
