"""BUD, the evaluation: what it takes of the run's time, and whether it says anything."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.plan import Plan
from neobert.plan.evaluation import evaluation_s, evaluation_tokens
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

MOST_TIME, ALL_TIME = 0.2, 1.0
"""Of the training between two evaluations."""
FEWEST_TARGETS = 1000
"""Losses of single tokens differ by some 2.5 nats: the mean of a thousand is known to 0.08."""


@rule(
    "BUD003",
    "evaluation-out-of-proportion",
    severity=Severity.FAIL,
    level=Level.STATIC,
    production_only=True,
)
def evaluation_out_of_proportion(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation that takes the run's time, or is too small to tell anything.

    ## What it does
    Estimates the evaluation's tokens: those that were prepared, where the text was looked at, else
    `dataset.eval_samples` documents of the assumed mean length, and never more than
    `trainer.eval_max_batches` hold. A token costs a third of what it costs in training. Warns where an
    evaluation takes more than a fifth of the training between two of them and fails where it takes longer
    than that training. Warns of fewer than 1,000 targets. A size that nobody knows beforehand is not judged.

    ## Why is this bad?
    The curves show no evaluation, and the GPUs are as busy as ever: a run of a day takes two. A few hundred
    targets on the other hand show noise, by which checkpoints are then chosen.

    ## Example
    ```yaml
    dataset:
      eval_samples: 8192
    trainer:
      eval_steps: 1
    ```

    ## Use instead
    ```yaml
    dataset:
      eval_samples: 8192
    trainer:
      eval_steps: 1000
    ```
    """
    tokens = _tokens(run.config, plan, facts)
    if tokens is None:
        return
    targets = tokens * run.config.datacollator.mlm_probability
    if targets < FEWEST_TARGETS:
        told = f"an evaluation of about {targets:,.0f} targets shows noise"
        yield Violation(_key_of_size(run.config), told, "evaluate some 1,000 documents", Severity.WARN)
    yield from _of_the_time(run, plan, tokens)


def _of_the_time(run: ResolvedRun, plan: Plan, tokens: float) -> Violations:
    takes_s = evaluation_s(tokens, plan.tokens_per_second.value)
    max_steps = run.config.trainer.max_steps
    steps = min(run.config.trainer.eval_steps or max_steps, max_steps)
    share = takes_s / (steps * plan.step_time_s.value)
    if share <= MOST_TIME:
        return
    enough, fewer = int(share * steps / MOST_TIME) + 1, "set trainer.eval_max_batches, or lower it"
    can_wait = enough <= max_steps
    yield Violation(
        "trainer.eval_steps" if can_wait else _key_of_size(run.config),
        f"an evaluation of about {tokens:,.0f} tokens takes {takes_s:,.1f} s, {share:.0%} of the "
        "training between two",
        f"set trainer.eval_steps to {enough} or more; or {fewer}" if can_wait else fewer,
        None if share > ALL_TIME else Severity.WARN,
    )


def _tokens(config: RunConfig, plan: Plan, facts: Facts) -> float | None:
    known = None if facts.prepared is None else facts.prepared.num_eval_tokens
    return evaluation_tokens(config, plan.max_length.value, plan.fill.value, known)


def _key_of_size(config: RunConfig) -> str:
    if config.trainer.eval_max_batches is not None:
        return "trainer.eval_max_batches"
    is_a_share = config.dataset.eval_samples is None and config.dataset.validation_split is not None
    return "dataset.validation_split" if is_a_share else "dataset.eval_samples"
