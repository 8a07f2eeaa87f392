"""Known-answer tests at the end of a rehearsal: loss, attention, and tests of the task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from neobert.families.table import model_shape
from neobert.probes.attention import attention_answers, draw_weights
from neobert.probes.loss import loss_answers
from neobert.probes.probed_model import probed_model
from neobert.probes.sparse import sparse_answers_for_model
from neobert.probes.target_rule import target_answers
from neobert.rehearsal.trials import evaluate_batch, first_batches, preserve_run_state, train_on_batch
from neobert.tasks.specs import spec_of
from neobert.training.guards.loss_guard import FiniteGuard
from neobert.training.loop import steps
from neobert.training.loop.task import ProbeResult
from neobert.training.state.trainer import Trainer


class TrainerProber:
    """`TaskProber` that uses the trainer of a rehearsal, after its last step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        # Labels that the run never had may have a higher loss than any before: not a spike of the run.
        report = trainer.run_dir / "nonfinite_of_probe.json"
        trainer.guard = FiniteGuard(trainer.world.device, report, 1, trainer.world.all_reduce_sum)

    def loss(self, batch: Any) -> float:
        """Return the loss of a microbatch over all ranks, with the same dropout in every call."""
        with preserve_run_state(self._trainer):
            step = self._trainer.task.step or steps.accumulate
            return float(step(self._trainer, [batch], max(1, batch.num_targets)))

    def score(self, batch: Any) -> Any:
        """Return the result of `Objective.evaluate` for a microbatch."""
        return evaluate_batch(self._trainer, batch)

    def train(self, batch: Any) -> None:
        """Train 10 steps on one microbatch at the peak learning rate."""
        train_on_batch(self._trainer, batch)


def all_answers(trainer: Trainer, batch: Any) -> Iterator[ProbeResult]:
    """Yield the results of every test on a microbatch that is full of text. Changes the weights.

    The tests of loss and attention are the same for every task; a task may add its own.
    """
    task, world = trainer.task, trainer.world
    shape = model_shape(trainer.config, task.model.config.vocab_size)
    spec = shape.attention
    prober = TrainerProber(trainer)
    of_task = spec_of(trainer.config)
    if spec.is_causal and of_task.is_self_supervised:
        yield from target_answers(first_batches(trainer, 1)[0])
    compares = of_task.predicts == "pairs"
    yield from loss_answers(prober, batch, spec, task.num_classes, compares=compares)
    yield from task.probe(prober, batch)
    # Only where it changes something: a compiled encoder would be compiled once more.
    if has_dropout(task.model.base_model):
        task.objective.eval()
    draw_weights(task.model, shape.embedding_multiplier)
    model = probed_model(task.backbone, task.objective, world, task.inputs, spec)
    # Ranks compute sharded blocks together, so they make the same calls.
    batch = world.on_main(lambda: batch)
    with world.gather_parameters_outside_blocks(trainer.module, task.backbone.ends):
        yield from attention_answers(model, batch)
        yield from sparse_answers_for_model(task.backbone, task.objective, world, batch, spec)
    task.objective.train()


def has_dropout(model: PreTrainedModel) -> bool:
    """Return whether the model has dropout, in a module or by a key of its config."""
    of_config = (value for name, value in model.config.to_dict().items() if "drop" in name)
    return any(isinstance(each, nn.Dropout) and each.p > 0 for each in model.modules()) or any(
        type(value) in (int, float) and value > 0 for value in of_config
    )
