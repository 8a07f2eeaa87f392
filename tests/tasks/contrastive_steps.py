"""Microbatches of pairs, a small BERT with dropout, and ranks as threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.windows import Cursor
from neobert.tasks.contrastive.objective import Embedder
from neobert.tasks.contrastive.task import with_every_query
from neobert.tasks.rank_data import inputs_of
from neobert.training.loop.task import Step

TEMPERATURE, VOCAB, WIDTH = 0.05, 50, 16


class Rank:
    """One of several ranks, each a thread: what a step needs of a `World`."""

    is_sharded = False
    device = torch.device("cpu")

    def __init__(self, rank: int, barrier: Barrier, shared: dict[Any, Any]) -> None:
        self.rank = self.dp_rank = rank
        self.size = self.dp_size = barrier.parties
        self._barrier, self._shared, self._calls = barrier, shared, 0

    def _exchange(self, value: Any) -> list[Any]:
        self._calls += 1
        self._shared[self._calls, self.rank] = value
        self._barrier.wait()
        return [self._shared[self._calls, rank] for rank in range(self.size)]

    def add_up(self, tensor: Tensor) -> Tensor:
        parts = self._exchange(tensor.detach().clone())
        return tensor.copy_(sum(parts[1:], parts[0]))

    def rows_of_ranks(self, rows: Tensor) -> list[Tensor]:
        found = self._exchange(rows.detach())
        return [rows if rank == self.rank else each for rank, each in enumerate(found)]

    def sum_over_ranks(self, values: Sequence[int]) -> list[int]:
        return [sum(each) for each in zip(*self._exchange(list(values)), strict=True)]

    def holding_gradients(self, module: Any, *, is_last: bool) -> Any:
        return nullcontext()

    def autocast(self) -> Any:
        return nullcontext()


def batch_of(lengths: Sequence[Sequence[int]], seed: int = 0, ids: Tensor | None = None) -> Microbatch:
    """Return a padded microbatch of examples with texts of these lengths; every query has a label."""
    flat = [length for example in lengths for length in example]
    draw, width = torch.Generator().manual_seed(seed), max(flat)
    mask = torch.arange(width) < torch.tensor(flat)[:, None]
    drawn = torch.randint(1, VOCAB, mask.shape, generator=draw) if ids is None else ids
    groups = torch.tensor([number for number, example in enumerate(lengths) for _ in example])
    built = Microbatch(
        input_ids=torch.where(mask, drawn, 0),
        labels=torch.full((len(flat),), -100),
        position_ids=torch.arange(width).expand(mask.shape).contiguous(),
        cu_seqlens=None,
        attention_mask=mask,
        max_seqlen=width,
        num_tokens=int(mask.sum()),
        num_targets=0,
        num_segments=len(flat),
        sample_ids=torch.arange(len(flat)),
        groups=groups,
        cursor=Cursor(),
    )
    return with_every_query(built, is_training=True)


def embedder(dropout: float) -> Embedder:
    """Return a small BERT with this dropout, the same in every call."""
    torch.manual_seed(7)
    settings = BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = BertModel(settings, add_pooling_layer=False).train()

    def hidden(inputs: dict[str, Any]) -> Tensor:
        read = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        return model(**read).last_hidden_state.flatten(0, 1)

    return Embedder(SimpleNamespace(model=model, hidden=hidden, units=[]), "avg")


def gradients(step: Step, steps: Sequence[Sequence[Microbatch]], dropout: float = 0.0) -> list[Tensor]:
    """Return the gradients of a step over ranks, each with its microbatches, averaged as DDP does."""
    barrier, shared = Barrier(len(steps)), dict[Any, Any]()
    num_targets = sum(batch.num_targets for batches in steps for batch in batches)
    modules = [embedder(dropout) for _ in steps]

    def run(rank: int) -> None:
        world = Rank(rank, barrier, shared)
        task = SimpleNamespace(inputs=inputs_of, objective=modules[rank])
        section = lambda _name: nullcontext()  # noqa: E731
        services = SimpleNamespace(
            world=world, task=task, module=modules[rank], stopwatch=SimpleNamespace(section=section)
        )
        step(services, steps[rank], num_targets)

    torch.manual_seed(11)
    in_threads(run, len(steps))
    found = [[each.grad for each in module.parameters()] for module in modules]
    # The reference adds the gradients up itself, so that they are equal on every rank.
    return [torch.stack(list(each)).mean(0) for each in zip(*found, strict=True)]


def in_threads(run: Callable[[int], None], count: int) -> None:
    """Run a function for each rank at the same time; the first rank alone runs in this thread."""
    if count == 1:
        run(0)
        return
    threads = [Thread(target=run, args=(rank,)) for rank in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the norm of the difference of gradients, relative to the norm of the first ones."""
    squares = sum((a - b).square().sum() for a, b in zip(one, other, strict=True))
    return float((squares / sum(each.square().sum() for each in one)).sqrt())
