"""Budget rules: duration, tokens per parameter, the global batch, and the evaluation's cost and size."""

from __future__ import annotations

from math import ceil

from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plan.pace import evaluation_s, num_evaluation_tokens
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import limiting_key, remaining_in_launch, sentence_subject
from validators.rule import Violations, rule
from validators.tasks import predicts_text_tokens

COMPUTE_OPTIMAL_TOKENS = 20
MIN_TOKENS = COMPUTE_OPTIMAL_TOKENS / 2
FEWEST_TARGETS = 1000
"""Minimum number of targets of an evaluation. The loss of one token has a standard deviation of about 2.5
nats, so the mean of 1,000 has a standard error of 0.08."""


@rule("BUD001", "budget-out-of-band", tasks=predicts_text_tokens, severity=Severity.FAIL, level=Level.STATIC)
def budget_out_of_band(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that exceeds its time limit, or trains on too few tokens for its size.

    ## What it does
    Compares the measured or derived duration with `guard.walltime_limit_hours`, which counts from each
    launch. For a run that resumes or continues from a checkpoint, only the remaining steps count; `lint` and
    `plan` take its step from the name of its folder, without verification. For a production run from scratch,
    also compares tokens per parameter with the compute-optimal 20 (Hoffmann et al., arXiv:2203.15556): fails
    below 10, warns below 20; the tokens of all steps count, since the weights have seen them. That figure is
    for decoders, which learn from every token; an encoder learns from masked tokens only and needs more. A
    run that starts from pretrained weights is exempt.

    ## Why is this bad?
    50,000 steps of 4,096 tokens look like a long run, but are 0.8 tokens per parameter for a model of 250
    million parameters.

    ## Example
    ```yaml
    trainer:
      max_steps: 50000
      per_device_train_batch_size: 4
    ```

    ## Use instead
    ```yaml
    trainer:
      max_steps: 100000
      per_device_train_batch_size: 128
    ```
    """
    limit = run.config.guard.walltime_limit_hours
    left = remaining_in_launch(run, plan, facts)
    hours = left.eta_s.value / 3600
    if limit is not None and hours > limit:
        yield Violation(
            limiting_key(run, plan),
            f"{sentence_subject(left)} takes {hours:,.1f} hours ({left.eta_s.reason}), but "
            f"guard.walltime_limit_hours is {limit:g}",
            _walltime_hint(plan, hours, limit),
        )
    tokens = plan.tokens_per_parameter
    is_judged = run.is_production and initial_weights(run.config) is None
    if is_judged and tokens.value < COMPUTE_OPTIMAL_TOKENS:
        yield Violation(
            limiting_key(run, plan),
            f"{tokens.value:.2f} tokens per parameter ({tokens.reason}); about {COMPUTE_OPTIMAL_TOKENS} is "
            "compute-optimal",
            _compute_optimal_hint(run, plan),
            None if tokens.value < MIN_TOKENS else Severity.WARN,
        )


def _walltime_hint(plan: Plan, hours: float, limit: float) -> str:
    longer = f"set guard.walltime_limit_hours to {ceil(hours)}, or use more devices"
    steps = plan.max_steps.value - ceil(3600 * (hours - limit) / plan.step_time_s.value)
    return f"set trainer.max_steps to {steps}; or {longer}" if steps > 0 else longer


def _compute_optimal_hint(run: ResolvedRun, plan: Plan) -> str:
    more = COMPUTE_OPTIMAL_TOKENS / plan.tokens_per_parameter.value
    trainer, steps = run.config.trainer, ceil(more * plan.max_steps.value)
    if trainer.max_epochs is not None and plan.max_steps.value < trainer.max_steps:
        epochs = f"set trainer.max_epochs to {ceil(more * trainer.max_epochs)}"
        longer = f"{epochs} and trainer.max_steps to {steps}" if steps > trainer.max_steps else epochs
        return f"{longer}, or add text, or use a smaller model"
    times = ceil(10 * more) / 10
    return f"set trainer.max_steps to {steps}, or use {times:,.1f} times larger batches, or a smaller model"


@rule("BUD002", "batch-not-as-declared", severity=Severity.FAIL, level=Level.STATIC)
def batch_not_as_declared(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A global batch that is not declared, or differs from the declared one.

    ## What it does
    Compares `trainer.global_batch_size` with rows per device x accumulation x processes. A production run
    must declare it.

    ## Why is this bad?
    The learning rate was tuned for one batch size. On twice the GPUs, the same file is another experiment.

    ## Example
    ```yaml
    trainer:
      per_device_train_batch_size: 32
      gradient_accumulation_steps: 4
      global_batch_size: 256   # one process: 128
    ```

    ## Use instead
    ```yaml
    trainer:
      per_device_train_batch_size: 32
      gradient_accumulation_steps: 8
      global_batch_size: 256
    ```
    """
    declared, actual, path = (
        run.config.trainer.global_batch_size,
        plan.global_batch_size,
        "trainer.global_batch_size",
    )
    if declared is None and run.is_production:
        message = f"a production run must set {path}; the batch is {actual.value} rows ({actual.reason})"
        yield Violation(path, message, f"set {path} to {actual.value}")
    elif declared is not None and declared != actual.value:
        yield Violation(
            path,
            f"{path} is {declared}, but the batch is {actual.value} rows ({actual.reason})",
            _matching_batch_hint(run, declared, actual.value),
        )


def _matching_batch_hint(run: ResolvedRun, declared: int, actual: int) -> str:
    accept = f"set trainer.global_batch_size to {actual} if that is intended"
    rows_per_pass = actual // run.config.trainer.gradient_accumulation_steps
    if declared % rows_per_pass:
        return f"{accept}, or change trainer.per_device_train_batch_size or the number of processes"
    return f"set trainer.gradient_accumulation_steps to {declared // rows_per_pass}; or {accept}"


MAX_TIME, ALL_TIME = 0.2, 1.0
"""Limits on an evaluation's duration, as shares of the training time between two evaluations."""


@rule(
    "BUD003",
    "evaluation-out-of-proportion",
    severity=Severity.FAIL,
    level=Level.STATIC,
    production_only=True,
    tasks=predicts_text_tokens,
)
def evaluation_out_of_proportion(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation that takes too much of the run's time, or is too small to be meaningful.

    ## What it does
    Estimates the evaluation's tokens: all of the prepared data if it was inspected, otherwise
    `dataset.eval_samples` documents of the assumed mean length, at most `trainer.eval_max_batches`
    microbatches. An evaluation token costs a third of a training token. Warns if an evaluation takes more
    than a fifth of the training time between two evaluations, fails if it takes longer than that training.
    Warns below 1,000 targets. An evaluation of unknown size is not checked.

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
    known = None if facts.prepared is None else facts.prepared.num_eval_tokens
    tokens = num_evaluation_tokens(run.config, plan.max_length.value, plan.fill.value, known)
    if tokens is None:
        return
    targets = tokens * masking_rates(run.config.datacollator).evaluation
    if targets < FEWEST_TARGETS:
        message = (
            f"an evaluation of about {targets:,.0f} targets is mostly noise (at least {FEWEST_TARGETS:,})"
        )
        yield Violation(_size_key(run.config), message, "evaluate about 1,000 documents", Severity.WARN)
    yield from _evaluation_time_violations(run, plan, tokens)


def _evaluation_time_violations(run: ResolvedRun, plan: Plan, tokens: float) -> Violations:
    takes_s = evaluation_s(run.config, tokens, plan.tokens_per_second.value)
    max_steps = plan.max_steps.value
    steps = min(run.config.trainer.eval_steps or max_steps, max_steps)
    share = takes_s / (steps * plan.step_time_s.value)
    if share <= MAX_TIME:
        return
    enough, fewer = int(share * steps / MAX_TIME) + 1, "set trainer.eval_max_batches to a lower value"
    can_wait = enough <= max_steps
    yield Violation(
        "trainer.eval_steps" if can_wait else _size_key(run.config),
        f"an evaluation of about {tokens:,.0f} tokens takes {takes_s:,.1f} s, {share:.0%} of the training "
        f"time between two evaluations (limit {ALL_TIME:.0%}, a warning above {MAX_TIME:.0%})",
        f"set trainer.eval_steps to {enough} or more; or {fewer}" if can_wait else fewer,
        None if share > ALL_TIME else Severity.WARN,
    )


def _size_key(config: RunConfig) -> str:
    if config.trainer.eval_max_batches is not None:
        return "trainer.eval_max_batches"
    is_a_share = config.dataset.eval_samples is None and config.dataset.validation_split is not None
    return "dataset.validation_split" if is_a_share else "dataset.eval_samples"
