"""Known-answer tests at the end of a rehearsal: of the loss, of the model's attention, and the task's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neobert.families.attention import AttentionSpec
from neobert.families.table import shape_of
from neobert.objectives import TokenObjective
from neobert.probes.attention import Probed, attention_answers, draw_weights
from neobert.probes.loss import loss_answers
from neobert.rehearsal.trials import aside, score, train_on
from neobert.training.guards.loss_guard import FiniteGuard
from neobert.training.loop import steps
from neobert.training.loop.task import Answer, Task
from neobert.training.state.trainer import Trainer


class Examined:
    """Implementation of `Examiner` with the trainer of a rehearsal, after its last step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        # Labels that the run never had may have a higher loss than any before: not a spike of the run.
        report = trainer.run_dir / "nonfinite_of_probe.json"
        trainer.guard = FiniteGuard(trainer.world.device, report, 1, trainer.world.add_up)

    def loss(self, batch: Any) -> float:
        """Return the loss of a microbatch over all ranks, with the same dropout in every call."""
        with aside(self._trainer):
            step = self._trainer.task.step or steps.accumulate
            return float(step(self._trainer, [batch], max(1, batch.num_targets)))

    def score(self, batch: Any) -> Any:
        """Return the result of `Objective.evaluate` for a microbatch."""
        return score(self._trainer, batch)

    def train(self, batch: Any) -> None:
        """Train 10 steps on one microbatch at the peak learning rate."""
        train_on(self._trainer, batch)


def all_answers(trainer: Trainer, batch: Any) -> Iterator[Answer]:
    """Yield the answers of every test on a microbatch that is full of text. Changes the weights.

    The tests of loss and attention are the same for every task; a task may add its own.
    """
    task, world = trainer.task, trainer.world
    spec = shape_of(trainer.config, task.model.config.vocab_size).attention
    examiner = Examined(trainer)
    yield from loss_answers(examiner, batch, spec, task.num_classes)
    yield from task.probe(examiner, batch)
    task.objective.eval()
    with world.whole(trainer.module):
        draw_weights(task.model)
        yield from attention_answers(probed(trainer, spec), batch)
    task.objective.train()


def probed(trainer: Trainer, spec: AttentionSpec) -> Probed:
    """Return the run's model as the probes see it: in the run's precision, with the kernels of its step."""
    task, world = trainer.task, trainer.world

    def hidden(batch: Any) -> Tensor:
        # With gradients: without them, other kernels may run.
        with world.autocast():
            return hidden_states(task, task.inputs(batch, world.device)).detach()

    @torch.no_grad()
    def plain(document: Tensor) -> Tensor:
        with exact_products(), torch.autocast(world.device.type, enabled=False):
            return task.backbone.plain(document)

    @torch.no_grad()
    def rounded(document: Tensor) -> Tensor:
        with world.autocast():
            return task.backbone.plain(document)

    def positions(batch: Any) -> Tensor | None:
        given = task.inputs(batch, world.device).get("position_ids")
        with torch.compiler.set_stance("force_eager"), recorded_positions(task.model.base_model) as received:
            hidden(batch)
        # Blocks that this project's kernels replace are called without the model around them.
        return received[0] if received else given

    return Probed(hidden=hidden, plain=plain, rounded=rounded, positions=positions, spec=spec)


def hidden_states(task: Task, inputs: dict[str, Any]) -> Tensor:
    """Return the final hidden states [T, D] of a microbatch, by the kernels that train the task."""
    inputs = {name: value for name, value in inputs.items() if name not in ("labels", "num_targets")}
    objective = task.objective
    if isinstance(objective, TokenObjective):
        return objective.final_states(objective.encode(inputs))
    return task.backbone.hidden(inputs)


@contextmanager
def recorded_positions(model: nn.Module) -> Iterator[list[Tensor | None]]:
    """Record the position ids of each call of the model inside the `with` block."""
    received: list[Tensor | None] = []

    def note(_model: nn.Module, _arguments: Any, named: dict[str, Any]) -> None:
        received.append(named.get("position_ids"))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield received
    finally:
        handle.remove()


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute matrix products of fp32 in fp32 inside the `with` block, without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
