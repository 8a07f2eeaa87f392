"""Microbatches of pairs, a small BERT with dropout, and ranks as threads of this process."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedModel

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.windows import Cursor
from neobert.families.backbone import Head
from neobert.objectives import Objective, TokenObjective
from neobert.tasks.contrastive.masked_lm import MixedEmbedder
from neobert.tasks.contrastive.objective import Embedder
from neobert.tasks.rank_data import objective_inputs
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

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        parts = self._exchange(tensor.detach().clone())
        return tensor.copy_(sum(parts[1:], parts[0]))

    def gather_rows(self, rows: Tensor) -> list[Tensor]:
        found = self._exchange(rows.detach())
        return [rows if rank == self.rank else each for rank, each in enumerate(found)]

    def sum_over_ranks(self, values: Sequence[int]) -> list[int]:
        return [sum(each) for each in zip(*self._exchange(list(values)), strict=True)]

    def gradient_sync(self, module: Any, *, is_last: bool) -> Any:
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
    return built.label_all_examples()


def with_masks(batch: Microbatch) -> Microbatch:
    """Return the microbatch with a mask at every third token."""
    is_target = torch.arange(batch.input_ids.numel()).view_as(batch.input_ids) % 3 == 0
    is_target &= batch.attention_mask
    return replace(
        batch,
        masked_ids=batch.input_ids.masked_fill(is_target, VOCAB - 1),
        masked_labels=torch.where(is_target, batch.input_ids, -100),
    )


def embedder(dropout: float) -> Embedder:
    """Return a small BERT with this dropout, the same in every call."""
    return Embedder(backbone_of(BertModel(settings_of(dropout), add_pooling_layer=False)), "avg")


def mixed_embedder(dropout: float) -> MixedEmbedder:
    """Return a small BERT with a masked-LM head."""
    model = BertForMaskedLM(settings_of(dropout))
    head = Head(model.cls.predictions.decoder, model.cls.predictions.transform)
    backbone = backbone_of(model, head)
    return MixedEmbedder(backbone, "avg", TokenObjective(backbone, targets_only=True))


def settings_of(dropout: float) -> BertConfig:
    """Return the settings of a small BERT, and seed its weights."""
    torch.manual_seed(7)
    return BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def backbone_of(model: PreTrainedModel, head: Head | None = None) -> Any:
    """Return what objectives need of a backbone."""

    def hidden(inputs: dict[str, Any]) -> Tensor:
        read = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        return model.base_model(**read).last_hidden_state.flatten(0, 1)

    return SimpleNamespace(
        model=model.train(), hidden=hidden, units=list(model.base_model.encoder.layer), head=head
    )


def gradients(
    step: Step,
    steps: Sequence[Sequence[Microbatch]],
    dropout: float = 0.0,
    build: Callable[[float], Objective] = embedder,
) -> list[Tensor]:
    """Return the gradients of a step over ranks, each with its microbatches, averaged as DDP does."""
    barrier, shared = Barrier(len(steps)), dict[Any, Any]()
    num_targets = sum(batch.num_targets for batches in steps for batch in batches)
    modules = [build(dropout) for _ in steps]

    def run(rank: int) -> None:
        world = Rank(rank, barrier, shared)
        task = SimpleNamespace(inputs=objective_inputs, objective=modules[rank])
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
