"""BUD: cost and size of the evaluation."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.plan import Plan
from neobert.plan.evaluation import evaluation_s, evaluation_tokens
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

MOST_TIME, ALL_TIME = 0.2, 1.0
"""Shares of the training time between two evaluations."""
FEWEST_TARGETS = 1000
"""The loss of single tokens has a standard deviation of about 2.5 nats: the error of 1,000 is 0.08."""


@rule(
    "BUD003",
    "evaluation-out-of-proportion",
    severity=Severity.FAIL,
    level=Level.STATIC,
    production_only=True,
    tasks=("pretrain",),
)
def evaluation_out_of_proportion(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation that takes too much of the run's time, or is too small to be meaningful.

    ## What it does
    Estimates the evaluation's tokens: those of the prepared data if it was inspected, otherwise
    `dataset.eval_samples` documents of the assumed mean length, at most `trainer.eval_max_batches`
    microbatches. An evaluation token costs a third of a training token. Warns if an evaluation takes more
    than a fifth of the training time between two evaluations, fails if it takes longer than that training.
    Warns below 1,000 targets. Does not judge an evaluation of unknown size.

    ## Why is this bad?
    Curves do not show time spent on evaluation, and the GPUs look busy: a run of one day takes two. With a
    few hundred targets the evaluation loss is mostly noise, and checkpoints are selected by that noise.

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
        message = (
            f"an evaluation of about {targets:,.0f} targets is mostly noise (at least {FEWEST_TARGETS:,})"
        )
        yield Violation(_size_key(run.config), message, "evaluate about 1,000 documents", Severity.WARN)
    yield from _of_the_time(run, plan, tokens)


def _of_the_time(run: ResolvedRun, plan: Plan, tokens: float) -> Violations:
    takes_s = evaluation_s(tokens, plan.tokens_per_second.value)
    max_steps = run.config.trainer.max_steps
    steps = min(run.config.trainer.eval_steps or max_steps, max_steps)
    share = takes_s / (steps * plan.step_time_s.value)
    if share <= MOST_TIME:
        return
    enough, fewer = int(share * steps / MOST_TIME) + 1, "set trainer.eval_max_batches to a lower value"
    can_wait = enough <= max_steps
    yield Violation(
        "trainer.eval_steps" if can_wait else _size_key(run.config),
        f"an evaluation of about {tokens:,.0f} tokens takes {takes_s:,.1f} s, {share:.0%} of the training "
        "time between two evaluations",
        f"set trainer.eval_steps to {enough} or more; or {fewer}" if can_wait else fewer,
        None if share > ALL_TIME else Severity.WARN,
    )


def _tokens(config: RunConfig, plan: Plan, facts: Facts) -> float | None:
    known = None if facts.prepared is None else facts.prepared.num_eval_tokens
    return evaluation_tokens(config, plan.max_length.value, plan.fill.value, known)


def _size_key(config: RunConfig) -> str:
    if config.trainer.eval_max_batches is not None:
        return "trainer.eval_max_batches"
    is_a_share = config.dataset.eval_samples is None and config.dataset.validation_split is not None
    return "dataset.validation_split" if is_a_share else "dataset.eval_samples"
