"""Number, size and duration of evaluations."""

from __future__ import annotations

from neobert.config.schema import RunConfig, TrainerConfig
from neobert.plan.derived import Derived, Values
from neobert.plan.flops import segment_tokens
from neobert.plurals import counted

FORWARD_SHARE = 1 / 3
"""Of a training step's work: the backward pass is twice the forward one."""


def plan_evaluations(config: RunConfig, batch: Values, tokens_per_second: float) -> Derived[float]:
    """Derive the seconds of all evaluations; none where nobody knows beforehand how large they are."""
    tokens = evaluation_tokens(config, batch["max_length"].value, batch["fill"].value)
    if tokens is None:
        return Derived(0.0, "evaluations of unknown size left out")
    count, each_s = num_evaluations(config.trainer), evaluation_s(tokens, tokens_per_second)
    return Derived(count * each_s, f"{counted(count, 'evaluation')} x {each_s:.3g} s")


def num_evaluations(trainer: TrainerConfig) -> int:
    """Count them: before the first step, every so many steps, and at the end."""
    return 1 + evaluations_after(0, trainer)


def evaluations_after(step: int, trainer: TrainerConfig) -> int:
    """Count those that are due after later steps than this one."""
    last, every = trainer.max_steps, trainer.eval_steps
    between = (last - 1) // every - step // every if every else 0
    return between + 1 if step < last else 0


def evaluation_s(tokens: float, tokens_per_second: float) -> float:
    """Return what an evaluation takes at the pace of training."""
    return FORWARD_SHARE * tokens / tokens_per_second


def evaluation_tokens(
    config: RunConfig, max_length: int, fill: float, prepared: int | None = None
) -> float | None:
    """Return the least of all that bounds the tokens of an evaluation; None where nothing does.

    Args:
        fill: share of a microbatch that is text.
        prepared: tokens of the split, where somebody has looked at it.
    """
    trainer, split = config.trainer, _tokens_of_the_split(config, max_length)
    bounds = [split if prepared is None else prepared]
    if trainer.eval_max_batches is not None:
        bounds.append(trainer.eval_max_batches * trainer.per_device_eval_batch_size * max_length * fill)
    return min((bound for bound in bounds if bound is not None), default=None)


def _tokens_of_the_split(config: RunConfig, max_length: int) -> float | None:
    samples = config.dataset.eval_samples
    if samples is None or config.dataset.eval_split is not None:
        return None
    return samples * segment_tokens(config, max_length, is_packed=True)
