"""The training loop.

`run_step` does one optimizer step, `fit` runs all steps with the hooks after each, and `evaluate` computes
the metrics of the evaluation split on all ranks.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neobert.config.schedules import microbatches_at
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.metric_names import EVAL, source_metric_name
from neobert.optim import clip_gradients, step_unless
from neobert.plan.pieces import piece_length_at
from neobert.plurals import counted, listed
from neobert.runfiles.phases import COLLECTIVE, COMPILE, DATA_WAIT, EVALUATION, FIRST_STEPS, STEP
from neobert.training.loop.hooks import Hook, StepReport
from neobert.training.loop.signals import StopRequested
from neobert.training.loop.task import Batch, StepServices
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.stopwatch import COLLATE

log = logging.getLogger(__name__)

CODE = "TRN003"


def fit(trainer: Trainer, hooks: Sequence[Hook]) -> bool:
    """Train until `max_steps` or a stop request of any rank; return True if complete, False if stopped.

    If the previous session stopped before it had run the hooks of its last step, they run first. The caller
    saves the checkpoint after a stop.
    """
    progress = trainer.progress
    try:
        if progress.row is not None:
            run_hooks(trainer, hooks)
        while progress.step < trainer.max_steps:
            run_step(trainer)
            run_hooks(trainer, hooks)
    except StopRequested:
        return False
    return True


def run_hooks(trainer: Trainer, hooks: Sequence[Hook]) -> None:
    """Run the hooks that are due at this step, stage by stage, and add their metrics to `progress.row`.

    The row is part of the checkpoint: after a stop between two hooks, the next session completes the row
    without replacing values.
    """
    step, row = trainer.progress.step, trainer.progress.row or {}
    report = StepReport(step, row)
    for hook in sorted(hooks, key=lambda hook: hook.stage):
        if hook.is_due(step, trainer.max_steps, trainer.progress.first_step):
            with trainer.stopwatch.pause(hook.name):
                for name, value in (hook.act(trainer, report) or {}).items():
                    row.setdefault(name, value)


def run_step(trainer: Trainer) -> None:
    """Do one optimizer step. Raises `StopRequested` before the step if any rank has a stop request.

    Raises `ProjectError` for a weight without gradient in step 1, and on a CPU for a bad loss or gradient.
    All microbatches are fetched first, so that the loss can be divided by the number of targets of the whole
    step, over all ranks and accumulated microbatches, and a stop never interrupts a step.
    """
    progress, stopwatch = trainer.progress, trainer.stopwatch
    # The first steps of a session compile, so their time does not indicate a hang.
    is_early = progress.step < (progress.resumed_step or 0) + FIRST_STEPS
    with stopwatch.step():
        with stopwatch.section("data_wait"):
            trainer.phases.enter(DATA_WAIT, progress.step)
            batches = fetch_batches(trainer)
            stopwatch.add_time(COLLATE, sum(batch.collate_ms for batch in batches))
            trainer.phases.enter(COLLECTIVE)
            num_targets, num_tokens = sum_counts(trainer, batches)
        trainer.phases.enter(COMPILE if is_early else STEP)
        loss_sum = (trainer.task.step or accumulate)(trainer, batches, num_targets)
        if progress.step == 0 and any(batch.num_targets for batch in batches):
            _refuse_untrained(trainer.task.model.named_parameters())
        stopwatch.mark_backward_launched()
        with stopwatch.section("clip"):
            judge_and_clip(trainer, batches, loss_sum, num_targets)
        with stopwatch.section("optimizer"):
            update(trainer, batches[-1])
        progress.loss.add(loss_sum, num_targets)
        progress.advance(batches[-1].cursor, num_tokens)


def fetch_batches(trainer: Trainer) -> list[Batch]:
    """Fetch the microbatches of a step; the sequence-length warm-up cuts their documents into segments.

    Returns an empty list if a stop was requested before they were ready.
    """
    step, config = trainer.progress.step, trainer.config
    try:
        with trainer.signals.raise_on_request():
            batches = [next(trainer.batches) for _ in range(microbatches_at(step, config.trainer))]
    except StopRequested:
        return []
    length = piece_length_at(step, config, trainer.max_steps)
    return batches if length is None else [batch.split_segments(length) for batch in batches]


def sum_counts(trainer: Trainer, batches: Sequence[Batch]) -> tuple[int, int]:
    """Return the step's numbers of targets and tokens over all ranks, and add its FLOPs to the state.

    Raises `StopRequested` on all ranks if any rank has a stop request.
    """
    own = [
        sum(batch.num_targets for batch in batches),
        sum(batch.num_tokens for batch in batches),
        sum(map(trainer.task.flops, batches)),
    ]
    num_targets, num_tokens, flops, *votes = trainer.world.sum_over_ranks(own + trainer.signals.votes)
    trainer.signals.stop_if_requested(votes)
    trainer.state.flops += flops
    return num_targets, num_tokens


def accumulate(trainer: StepServices, batches: Sequence[Batch], num_targets: int) -> Tensor:
    """Run forward and backward over the microbatches; return the loss of all ranks, summed over targets."""
    world, stopwatch = trainer.world, trainer.stopwatch
    scale = world.dp_size / max(num_targets, 1)  # ranks average their gradients
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    if trainer.task.objective.has_cuda_graphs:  # otherwise the call would import Inductor needlessly
        # CUDA graphs keep their results until here: gradients live through all microbatches of a step.
        torch.compiler.cudagraph_mark_step_begin()
    for index, batch in enumerate(batches):
        with stopwatch.section("copy"):
            inputs = trainer.task.inputs(batch, world.device)
        with world.gradient_sync(trainer.module, is_last=index == len(batches) - 1):
            with stopwatch.section("forward"):
                loss_sum = trainer.module(**inputs)
            with stopwatch.section("backward"):
                (loss_sum * scale).backward()
        total += loss_sum.detach()
    return world.all_reduce_sum(total)


def judge_and_clip(trainer: Trainer, batches: Sequence[Batch], loss_sum: Tensor, num_targets: int) -> None:
    """Check loss and gradient norm for NaN, infinity and loss spikes, and clip the gradients.

    Gradients are clipped to `trainer.gradient_clipping`, unless that is None.
    """
    grad_norm = trainer.world.gradient_norm(trainer.module)
    step = trainer.progress.step + 1
    trainer.guard.remember(step, map(trainer.task.describe, batches))
    trainer.guard.judge(step, loss_sum / max(num_targets, 1), grad_norm)
    if trainer.config.trainer.gradient_clipping is not None:
        limit = trainer.config.trainer.gradient_clipping
        clip_gradients(trainer.optimizer, trainer.module.parameters(), limit, grad_norm)
    trainer.state.grad_norm = grad_norm


def update(trainer: Trainer, last_batch: Batch) -> None:
    """Step optimizer and scheduler, and apply QK-clip when due."""
    trainer.state.learning_rate = float(trainer.scheduler.get_last_lr()[0])
    step_unless(trainer.guard.verdict, trainer.optimizer)
    clip = trainer.qk_clip
    if clip is not None and clip.is_due(trainer.progress.step + 1):
        with trainer.world.autocast():
            clip(trainer.task.inputs(last_batch, trainer.world.device))
    trainer.world.recipe.after_update(trainer.module)
    trainer.scheduler.step()
    trainer.optimizer.zero_grad(set_to_none=True)


def evaluate(trainer: Trainer) -> dict[str, float | None]:
    """Return the task's metrics on the evaluation split, and the time that this takes; empty without one.

    A run with a source text evaluates on this text too, under the names eval/source_*.

    A metric is None if the split has no target for it, or if it is not finite, which is logged.
    Raises `StopRequested` on all ranks if any rank received a stop request.
    """
    evaluation = trainer.task.evaluation
    if evaluation is None:
        return {}
    found: dict[str, float | None] = {}
    started_s = time.perf_counter()
    values = _evaluate_text(trainer, evaluation)
    if trainer.source_evaluation is not None:
        source_values = _evaluate_text(trainer, trainer.source_evaluation)
        values |= {source_metric_name(name): value for name, value in source_values.items()}
    for name, value in values.items():
        is_number = value is None or math.isfinite(value)
        if not is_number:
            metric = name.removeprefix(EVAL)
            step = trainer.progress.step
            log.warning("step %d: evaluation metric %s is not finite: %s", step, metric, value)
        found[name] = value if is_number else None
    _warn_about_missing_metric(trainer, found)
    trainer.state.evaluations += 1
    trainer.state.evaluation_s = time.perf_counter() - started_s
    return found | {"time/evaluation_ms": trainer.state.evaluation_s * 1000}


def _warn_about_missing_metric(trainer: Trainer, metrics: Mapping[str, float | None]) -> None:
    metric = trainer.config.trainer.metric_for_best_model
    if metric is not None and metrics.get(metric) is None:
        message = f"{metric} has no value on the evaluation data: it cannot select a best checkpoint"
        if trainer.config.trainer.early_stopping_patience is not None:
            message += " and does not count for early stopping"
        trainer.state.warn("undefined_metric", message)


def _evaluate_text(trainer: Trainer, evaluation: Callable[[], Iterable[Any]]) -> dict[str, float | None]:
    """Evaluate the objective in eval mode on this rank's microbatches; return the metrics of all ranks."""
    metrics = trainer.task.metrics()
    world, objective = trainer.world, trainer.task.objective
    objective.eval()
    try:
        with world.evaluation_context(trainer.module):
            for done, batch in enumerate(_synchronized_batches(trainer, iter(evaluation())), start=1):
                trainer.phases.enter(EVALUATION)
                trainer.phases.parts = (done, trainer.state.evaluation_parts)
                with world.autocast():
                    score = objective.evaluate(**trainer.task.inputs(batch, world.device))
                metrics.add(score, batch)
        trainer.state.evaluation_parts = trainer.phases.parts[0]
    finally:
        trainer.phases.parts = (None, None)
        objective.train()
    return metrics.values(world)


def _synchronized_batches(trainer: Trainer, stream: Iterator[Any]) -> Iterator[Any]:
    """Yield this rank's microbatches, and take part in collectives until no rank has any left.

    Ranks may yield different numbers of microbatches.

    Raises `StopRequested` on all ranks if any rank has a stop request.
    """
    while True:
        batch = _next_batch(trainer, stream)
        num_left, *votes = trainer.world.sum_over_ranks([int(batch is not None), *trainer.signals.votes])
        trainer.signals.stop_if_requested(votes)
        if not num_left:
            return
        if batch is not None:
            yield batch


def _next_batch(trainer: Trainer, stream: Iterator[Any]) -> Any | None:
    try:
        with trainer.signals.raise_on_request():
            return next(stream, None)
    except StopRequested:
        return None


def _refuse_untrained(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `ProjectError` if a trained parameter has no gradient, after the first backward pass of a run.

    Optimizers keep no state for it, so that no checkpoint could be resumed, and it would keep its random
    values to the end.
    """
    names = [name for name, each in parameters if each.requires_grad and each.grad is None]
    if names:
        raise ProjectError(
            CODE,
            f"{counted(len(names), 'weight')} of the model got no gradient in step 1: {listed(names)}",
            "use these weights in the loss, or build the model without a head (auto_class AutoModel)",
            "task",
            EXIT_TRAINING_FAILED,
        )
