"""Optimizer step of contrastive training: GradCache (arXiv:2101.06983).

The negatives of a query are the documents of the whole step, over microbatches and ranks. The step computes
the vectors of each microbatch without a graph, the gradient of the loss with respect to these vectors, and
then each microbatch again, with the same random numbers, for the gradient with respect to the weights. The
graph of one microbatch is in memory at a time, and the gradient is that of one graph over all.

Shapes: K texts of a microbatch, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.text_digests import without_scored_examples
from neobert.parallel import World
from neobert.tasks.contrastive.loss import InfoNCELoss, gather_texts
from neobert.tasks.contrastive.masked_lm import MaskedTerm
from neobert.tasks.contrastive.scored import ScoredDocuments, ScoreLoss
from neobert.tasks.contrastive.texts import Texts
from neobert.training.loop.task import StepServices


@dataclass(slots=True)
class StepCounts:
    """Counts of this rank since the last line of metrics, kept on the device to avoid synchronization."""

    steps: int = 0
    pairs: int = 0
    queries: int = 0
    candidates: int = 0
    num_false: Tensor | None = None

    def add_step(self, pairs: int) -> None:
        """Add a step of this rank, with its number of pairs."""
        self.steps += 1
        self.pairs += pairs

    def add(self, queries: int, candidates: int, num_false: Tensor) -> None:
        """Add queries of this rank, each compared with all candidates, and its number of false negatives."""
        self.queries += queries
        self.candidates += queries * (candidates - 1)
        self.num_false = num_false if self.num_false is None else self.num_false + num_false

    def take(self, world: World) -> dict[str, float]:
        """Return pairs per step, negatives and false negatives per query over all ranks; reset the counts."""
        num_false = 0 if self.num_false is None else int(self.num_false)
        pairs, queries, candidates, false = world.sum_over_ranks(
            [self.pairs, self.queries, self.candidates, num_false]
        )
        found = {
            "train/pairs_per_step": pairs / max(1, self.steps),
            "train/negatives_per_query": (candidates - false) / max(1, queries),
            "train/false_negatives_per_query": false / max(1, queries),
        }
        for count in fields(self):
            setattr(self, count.name, count.default)
        return found


@dataclass(slots=True)
class RepeatedForward:
    """Forward passes of one microbatch with the same random numbers."""

    trainer: StepServices
    inputs: dict[str, Any]
    generators: list[Tensor] = field(default_factory=list)

    def run_without_graph(self) -> Tensor:
        """Record the state of the random generators, and return the vectors [K, D]."""
        self.generators = generator_states(self.trainer.world.device)
        return self.forward()

    def run_with_graph(self) -> Tensor:
        """Recompute the vectors of the first pass, with an autograd graph."""
        with restore_generators(self.generators, self.trainer.world.device):
            return self.forward()

    def forward(self) -> Tensor:
        """Return the vectors [K, D] of the microbatch."""
        with self.trainer.stopwatch.section("forward"):
            vectors: Tensor = self.trainer.module(**self.inputs)
        return vectors


@dataclass(frozen=True, slots=True)
class ContrastiveStep:
    """Forward and backward of a step; returns the loss of all ranks, summed over the queries.

    Attributes:
        score_loss: loss of scored documents; None: no scores are read.
        masked: masked-LM term; None: none is added.
    """

    loss: InfoNCELoss
    score_loss: ScoreLoss | None = None
    masked: MaskedTerm | None = None
    counts: StepCounts = field(default_factory=StepCounts)

    def __call__(self, trainer: StepServices, batches: Sequence[Microbatch], num_targets: int) -> Tensor:
        """Add the gradients of the mean loss of `num_targets` queries, and of masked tokens.

        Returns the summed loss of the queries of all ranks.
        """
        world = trainer.world
        with trainer.stopwatch.section("copy"):
            passes = [RepeatedForward(trainer, trainer.task.inputs(batch, world.device)) for batch in batches]
        is_single = len(passes) == 1  # its graph is kept: there is no second pass
        # Ranks exchange gradients in the last pass of the step, that of masked tokens if there is one.
        ends = self.masked is None
        first = nullcontext() if is_single else torch.no_grad()
        with world.gradient_sync(trainer.module, is_last=ends), first:
            vectors = [each.run_without_graph() for each in passes]
        found = [each.detach() for each in vectors]
        self.counts.add_step(sum(batch.num_targets for batch in batches))
        total, gradient = self.pair_gradient(world, torch.cat(found), join_texts(batches, found))
        if self.score_loss is not None:
            score_loss, more = score_gradient(
                self.score_loss, world, torch.cat(found), join_scored_documents(batches, found)
            )
            total, gradient = total + score_loss, gradient + more
        gradients = gradient.split([len(each) for each in found])
        scale = world.dp_size / max(num_targets, 1)  # ranks average their gradients
        masked_scale = 0.0 if self.masked is None else self.masked.loss_scale(world, batches)
        for index, (each, gradient) in enumerate(zip(passes, gradients, strict=True)):
            is_last = index == len(passes) - 1
            with world.gradient_sync(trainer.module, is_last=is_last and ends):
                replayed = vectors[0] if is_single else each.run_with_graph()
                with trainer.stopwatch.section("backward"):
                    replayed.backward(gradient * scale)
            if self.masked is not None:
                with world.gradient_sync(trainer.module, is_last=is_last):
                    self.masked.add_gradients(trainer, each.inputs, masked_scale)
        return world.all_reduce_sum(total)

    def logged_metrics(self, world: World) -> dict[str, float]:
        """Return the metrics of training since the last call, over all ranks."""
        return self.counts.take(world) | ({} if self.masked is None else self.masked.take(world))

    def pair_gradient(self, world: World, vectors: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
        """Return the loss of this rank's queries, and the gradient of all ranks' loss for its vectors."""
        queries, candidates, own = gather_texts(world, vectors, texts)
        anchors, documents = queries.vectors.requires_grad_(), candidates.vectors.requires_grad_()
        anchors.grad, documents.grad = torch.zeros_like(anchors), torch.zeros_like(documents)
        total = torch.zeros((), dtype=torch.float64, device=anchors.device)
        num_false = torch.zeros((), dtype=torch.int64, device=anchors.device)
        for chunk in queries.chunks():
            loss, false = self.loss.compute(chunk, candidates)
            loss.backward()
            total += loss.detach()
            num_false += false
        self.counts.add(len(anchors), len(documents), num_false)
        gradient = torch.zeros_like(vectors)
        gradient[texts.queries] = anchors.grad
        gradient[texts.documents] = world.all_reduce_sum(documents.grad)[own]
        return total, gradient


def score_gradient(
    loss: ScoreLoss, world: World, vectors: Tensor, scored: ScoredDocuments
) -> tuple[Tensor, Tensor]:
    """Return this rank's loss of scored documents, and the gradient of all ranks' loss for its vectors."""
    vectors = vectors.clone().requires_grad_()
    own, of_all_ranks = loss.compute(world, vectors, scored)
    (gradient,) = torch.autograd.grad(of_all_ranks, vectors)
    return own.detach().double(), gradient


def join_texts(batches: Sequence[Microbatch], vectors: Sequence[Tensor]) -> Texts:
    """Return the texts of examples without scores, joined over microbatches, on the vectors' device."""
    parts = [Texts.from_batch(without_scored_examples(batch)) for batch in batches]
    return Texts.join(parts, [len(each) for each in vectors]).to(vectors[0].device)


def join_scored_documents(batches: Sequence[Microbatch], vectors: Sequence[Tensor]) -> ScoredDocuments:
    """Return the scored documents, joined over microbatches, on the vectors' device."""
    parts = [ScoredDocuments.from_batch(batch) for batch in batches]
    return ScoredDocuments.join(parts, [len(each) for each in vectors]).to(vectors[0].device)


def generator_states(device: torch.device) -> list[Tensor]:
    """Return the states of torch's random generators: the CPU's, and the device's if it is a GPU."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


@contextmanager
def restore_generators(states: Sequence[Tensor], device: torch.device) -> Iterator[None]:
    """Restore generator states in the `with` block; the states outside are unchanged."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(states[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(states[1], device)
        yield
