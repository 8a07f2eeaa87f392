"""PRF: the pace that a rehearsal had."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from statistics import median

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import SpeedFacts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, measured, no_gpu_is_required, rehearsal_of
from validators.rule import Violations, rule

HARD_FLOOR = 0.01
FLOOR_SHARE = 0.5
"""Of what the profile expects: a card at its power limit or a longer context costs less than half."""
TOLERANCE = 0.1
MOST_DATA_WAIT = 0.1
WORK_OF_A_TOKEN = (
    "model",
    "distributed",
    "dataset.max_seq_length",
    "datacollator",
    "trainer.per_device_train_batch_size",
    "trainer.gradient_checkpointing",
    "trainer.mixed_precision",
    "trainer.torch_compile",
)


def _speed(facts: Facts) -> SpeedFacts:
    return measured(rehearsal_of(facts).speed, facts, "the pace")


@rule(
    "PRF001",
    "device-left-idle",
    severity=Severity.FAIL,
    level=Level.REHEARSAL,
    needs=NEEDS,
    inapplicable=no_gpu_is_required,
)
def device_left_idle(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that uses next to nothing of the device it occupies.

    ## What it does
    Measures the share of the device's peak that the model's own arithmetic reaches (MFU). It fails below
    half of what the profile expects, and below 1 % whatever the profile says.

    ## Why is this bad?
    Every key may look right, and the run still be a toy, or wait, or compute in the wrong precision. A run
    of 24 hours at 0.004 % of two cards passed every look at its config; one minute of measuring ends it.

    ## Example
    ```text
    hidden_size 128 and rows of 128 on an A100: MFU 0.004 %
    ```

    ## Use instead
    ```text
    the profile's size and batch; `bench` shows where the time of a step goes
    ```
    """
    mfu = measured(_speed(facts).mfu, facts, "the device's peak is in no table, so MFU")
    expected = 0.0 if run.profile is None else run.profile.expects.mfu
    floor = max(HARD_FLOOR, FLOOR_SHARE * expected)
    if mfu < floor:
        because = (
            f"half of the {expected:.0%} that the profile expects" if floor > HARD_FLOOR else "the least"
        )
        yield Violation(
            "model",
            f"the model's arithmetic reaches {mfu:.3%} of the device's peak; {floor:.1%} is {because}",
            "raise the batch or the model, or look for what the step waits for: trainer.timing_breakdown",
        )


@rule(
    "PRF002",
    "unsteady-pace",
    severity=Severity.WARN,
    level=Level.REHEARSAL,
    needs=NEEDS,
    inapplicable=no_gpu_is_required,
)
def unsteady_pace(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A pace that is not what it was, or that does not settle.

    ## What it does
    Warns where tokens/s differ by more than 10 % from an earlier rehearsal of the same config on this device,
    or lie that much outside what the profile has measured, for a run that keeps the profile's model, length,
    batch and precision; where the later steps take 10 % longer or shorter than the earlier ones; and where
    anything is compiled behind the warm-up.

    ## Why is this bad?
    A pace that drifts in a minute does not hold for a day, and a graph that is compiled anew for every shape
    costs minutes each time.

    ## Example
    ```text
    tokens/s 291k, and 352k last week: the card is hot, shared, or throttled
    ```

    ## Use instead
    ```text
    the GPU checks (GPU005, GPU008) for the device; packing for shapes that stay
    ```
    """
    speed, found = _speed(facts), rehearsal_of(facts)
    hint = "compare with GPU005 and GPU008; `bench` measures two ways of running it against each other"
    for fault in (*_off_baseline(speed, found.baseline_tokens_per_second), *_off_profile(run, speed)):
        yield Violation("trainer", fault, hint)
    first, last = _halves(speed.line_step_times_s)
    if abs(last / first - 1) > TOLERANCE:
        yield Violation("trainer", f"steps went from {first:.3g} s to {last:.3g} s while it ran", hint)
    if speed.recompiles:
        message = f"{speed.recompiles} functions were compiled behind the warm-up"
        yield Violation("trainer.torch_compile", message, "the log names each with its reason")


def _off_baseline(speed: SpeedFacts, baseline: float | None) -> Iterator[str]:
    if baseline is not None and abs(speed.tokens_per_second / baseline - 1) > TOLERANCE:
        yield f"{speed.tokens_per_second:,.0f} tokens/s, and {baseline:,.0f} at an earlier rehearsal"


def _off_profile(run: ResolvedRun, speed: SpeedFacts) -> Iterator[str]:
    expects = None if run.profile is None else run.profile.expects
    if expects is None or expects.is_estimate or not _keeps_the_work(run) or not expects.tokens_per_second:
        return
    low, high = expects.tokens_per_second
    if not low * (1 - TOLERANCE) <= speed.tokens_per_second <= high * (1 + TOLERANCE):
        yield f"{speed.tokens_per_second:,.0f} tokens/s; the profile expects {low:,.0f} to {high:,.0f}"


def _keeps_the_work(run: ResolvedRun) -> bool:
    """Whether a token costs what it costs in the profile, on as many devices."""
    profile = run.profile
    return profile is not None and all(
        attrgetter(key)(run.config) == attrgetter(key)(profile.config) for key in WORK_OF_A_TOKEN
    )


def _halves(times_s: tuple[float, ...]) -> tuple[float, float]:
    """Return the median step time of the earlier lines and of the later ones."""
    middle = max(1, len(times_s) // 2)
    return median(times_s[:middle]), median(times_s[middle:] or times_s)


@rule("PRF003", "waiting-for-data", severity=Severity.WARN, level=Level.REHEARSAL, needs=NEEDS)
def waiting_for_data(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A device that waits for its next batch.

    ## What it does
    Warns where more than a tenth of a step is spent waiting for data.

    ## Why is this bad?
    It is the one cost that more threads or a nearer disk take away for nothing.

    ## Example
    ```yaml
    dataset:
      num_workers: 0
    ```

    ## Use instead
    ```yaml
    dataset:
      num_workers: 2
    ```
    """
    share = _speed(facts).data_wait_share
    if share > MOST_DATA_WAIT:
        yield Violation(
            "dataset.num_workers",
            f"{share:.0%} of a step is spent waiting for data; {MOST_DATA_WAIT:.0%} is the most",
            "raise dataset.num_workers or dataset.prefetch_factor, or bring the data nearer",
        )
