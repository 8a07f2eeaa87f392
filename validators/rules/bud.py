"""BUD: what the run costs, and whether it buys a trained model."""

from __future__ import annotations

from math import ceil

from neobert.families.table import initial_weights
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import seconds_left, what_is_left
from validators.rule import Violations, rule

COMPUTE_OPTIMAL_TOKENS = 20
LEAST_TOKENS = COMPUTE_OPTIMAL_TOKENS / 2


@rule("BUD001", "budget-out-of-band", severity=Severity.FAIL, level=Level.STATIC)
def budget_out_of_band(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that does not end in time, or that sees too little text for its size.

    ## What it does
    Compares the ETA, measured or derived, with `guard.walltime_limit_hours`, which counts from each launch:
    of a run that goes on from a checkpoint, where one was looked for and verified, the steps that are left
    are judged. Without a look at the disk, as `lint` and `--dry-run` are, it is the whole run. In a
    production run that starts from scratch it also compares tokens per parameter with the compute-optimal
    20 (Hoffmann et al., arXiv:2203.15556): below half of it the run fails, below it warns. That figure is
    for decoders, which learn from every token; an encoder learns from the masked share and wants more, not
    less. A run that starts from trained weights is not judged by it.

    ## Why is this bad?
    50,000 steps of 4,096 tokens look like a long run and are 0.8 tokens for each of 250 million parameters.

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
    hours = seconds_left(run, plan, facts) / 3600
    if limit is not None and hours > limit:
        yield Violation(
            "trainer.max_steps",
            f"{what_is_left(facts)} takes {hours:,.1f} hours and may take {limit:g} ({plan.eta_s.reason})",
            _what_fits(run, plan, hours, limit),
        )
    tokens = plan.tokens_per_parameter
    is_judged = run.is_production and initial_weights(run.config) is None
    if is_judged and tokens.value < COMPUTE_OPTIMAL_TOKENS:
        yield Violation(
            "trainer.max_steps",
            f"{tokens.value:.2f} tokens a parameter ({tokens.reason}); {COMPUTE_OPTIMAL_TOKENS} are optimal",
            _what_is_enough(run, tokens.value),
            None if tokens.value < LEAST_TOKENS else Severity.WARN,
        )


def _what_fits(run: ResolvedRun, plan: Plan, hours: float, limit: float) -> str:
    longer = f"set guard.walltime_limit_hours to {ceil(hours)}, or use more devices"
    steps = run.config.trainer.max_steps - ceil(3600 * (hours - limit) / plan.step_time_s.value)
    return f"set trainer.max_steps to {steps}; or {longer}" if steps > 0 else longer


def _what_is_enough(run: ResolvedRun, tokens_per_parameter: float) -> str:
    more = COMPUTE_OPTIMAL_TOKENS / tokens_per_parameter
    steps = ceil(more * run.config.trainer.max_steps)
    times = ceil(10 * more) / 10
    return f"set trainer.max_steps to {steps}, take {times:,.1f} times as large batches, or a smaller model"


@rule("BUD002", "batch-not-as-declared", severity=Severity.FAIL, level=Level.STATIC)
def batch_not_as_declared(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A global batch that differs from the declared one, or that nobody declared.

    ## What it does
    Compares `trainer.global_batch_size` with rows x accumulation x processes. A production run has to
    declare it.

    ## Why is this bad?
    The learning rate was chosen for a batch. With twice the GPUs the same file is another experiment.

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
        message = f"a production run declares its global batch; it is {actual.value} ({actual.reason})"
        yield Violation(path, message, f"set {path} to {actual.value}")
    elif declared is not None and declared != actual.value:
        yield Violation(
            path,
            f"{declared} rows per step are declared, and it comes to {actual.value} ({actual.reason})",
            _what_agrees(run, declared, actual.value),
        )


def _what_agrees(run: ResolvedRun, declared: int, actual: int) -> str:
    meant = f"set trainer.global_batch_size to {actual}, if that is meant"
    at_once = actual // run.config.trainer.gradient_accumulation_steps
    if declared % at_once:
        return f"{meant}, or change the rows of a device, accumulation or processes"
    return f"set trainer.gradient_accumulation_steps to {declared // at_once}; or {meant}"
