"""Reference contrastive step: one graph over all microbatches, compared with the step in the rehearsal.

It shares only the vectors and the false-negative rule with the real step: torch recomputes the activations,
and answers are found by example number, not by offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.text_digests import without_scored_examples
from neobert.tasks.contrastive.loss import InfoNCELoss
from neobert.tasks.contrastive.scored import ScoredDocuments, ScoreLoss
from neobert.tasks.contrastive.texts import Texts
from neobert.training.loop.task import StepServices


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """Forward and backward of a step; returns the loss of all ranks, summed over the queries.

    Attributes:
        masked_lm_weight: weight of the masked tokens' mean loss; the query loss has weight 1.
    """

    loss: InfoNCELoss
    score_loss: ScoreLoss | None = None
    masked_lm_weight: float = 0.0

    def __call__(self, trainer: StepServices, batches: Sequence[Microbatch], num_targets: int) -> Tensor:
        """Add the gradients of the mean loss of `num_targets` queries, and of masked tokens.

        Returns the summed loss of the queries of all ranks.
        """
        world, module = trainer.world, trainer.module
        run: Any = partial(checkpoint, trainer.task.objective, use_reentrant=False)
        if world.is_sharded:
            run = module
        inputs = [trainer.task.inputs(batch, world.device) for batch in batches]
        of_words = torch.zeros((), device=world.device)
        with world.gradient_sync(module, is_last=world.is_sharded), world.autocast():
            vectors = [run(**each) for each in inputs]
            if self.masked_lm_weight:
                of_words = torch.stack([run(**each, predicts_words=True) for each in inputs]).sum()
        (num_masked,) = world.sum_over_ranks([sum(batch.num_masked for batch in batches)])
        texts = [Texts.from_batch(without_scored_examples(batch)) for batch in batches]
        numbers = [
            torch.where(batch.groups < 0, -1, batch.groups + (index * world.size + world.rank << 32))
            for index, batch in enumerate(batches)
        ]

        def gather_all(parts: Sequence[Tensor]) -> Tensor:
            return torch.cat(world.gather_rows(torch.cat(list(parts)).to(world.device)))

        pairs = list(zip(vectors, numbers, texts, strict=True))
        queries = gather_all([vector[each.queries] for vector, _, each in pairs])
        documents = gather_all([vector[each.documents] for vector, _, each in pairs])
        of_question = gather_all([number[each.queries] for _, number, each in pairs])
        answers = gather_all([_answered_examples(number, each) for _, number, each in pairs])
        digests = gather_all([each.digests for each in texts])
        query_digests = gather_all([each.query_digests for each in texts])
        owners = gather_all([each.owners for each in texts])
        is_answer = of_question[:, None] == answers
        same = digests[:, None] == digests
        is_false = (is_answer.float() @ same.float() > 0) | (digests == query_digests[:, None])
        is_false |= owners == query_digests[:, None]
        total = torch.zeros((), device=queries.device)
        for width in (*self.loss.widths, queries.shape[1]):
            cut = (each[:, :width] for each in (queries, documents))
            one, other = (each / each.norm(dim=1, keepdim=True) for each in cut)
            logits = one @ other.T / self.loss.temperature
            logits = logits.masked_fill(is_false & ~is_answer, -torch.inf)
            total = total + (logits.logsumexp(1) - logits.masked_fill(~is_answer, 0).sum(1)).sum()
        total = total / (len(self.loss.widths) + 1)
        if self.score_loss is not None:
            scored = [ScoredDocuments.from_batch(batch) for batch in batches]
            parts = list(zip(vectors, numbers, scored, strict=True))
            total = total + _score_loss(
                self.score_loss,
                gather_all([vector[each.queries] for vector, _, each in parts]),
                gather_all([vector[each.documents] for vector, _, each in parts]),
                gather_all([number[each.documents] for _, number, each in parts]),
                gather_all([each.scores for each in scored]),
            )
        mean = total / max(num_targets, 1) + self.masked_lm_weight * of_words / max(num_masked, 1)
        with world.gradient_sync(module, is_last=world.is_sharded):
            (mean * (world.dp_size if world.is_sharded else 1)).backward()
        if not world.is_sharded:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    world.all_reduce_sum(parameter.grad)
        return total.detach()


def _answered_examples(numbers: Tensor, texts: Texts) -> Tensor:
    """Return the number of the example that each document answers, int64 [M]; -2 for hard negatives."""
    number = numbers[texts.documents]
    is_first = torch.ones_like(number, dtype=torch.bool)
    is_first[1:] = number[1:] != number[:-1]
    return torch.where(is_first, number, -2)


def _score_loss(
    loss: ScoreLoss, queries: Tensor, documents: Tensor, numbers: Tensor, scores: Tensor
) -> Tensor:
    """Return the loss of scored documents [N], from matrices [N, N]; `numbers` [N] are their examples."""
    is_same = numbers[:, None] == numbers
    is_taught = is_same.sum(1) > 1
    is_pair = ~is_taught

    def log_shares(values: Tensor) -> Tensor:
        return values - values.expand(is_same.shape).masked_fill(~is_same, -torch.inf).logsumexp(1)

    total = torch.zeros((), device=queries.device)
    for width in (*loss.widths, queries.shape[1]):
        similar = torch.cosine_similarity(queries[:, :width], documents[:, :width]) / loss.temperature
        is_higher = (scores[:, None] > scores) & is_pair[:, None] & is_pair
        compared = (similar - similar[:, None])[is_higher]
        total = total + is_pair.sum() * torch.cat([compared.new_zeros(1), compared]).logsumexp(0)
        teacher = log_shares(scores / loss.teacher_temperature)
        total = total + (teacher.exp() * (teacher - log_shares(similar)))[is_taught].sum()
    return total / (len(loss.widths) + 1)
