"""Performance rules: throughput measured in a rehearsal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neobert.plan import Plan
from neobert.plurals import counted
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators import cuda_graphs
from validators.departures import keys_differing_from_profile
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rehearsal_parts import reason_without_gpu, require_measured, require_rehearsal
from validators.rule import Violations, rehearsal_rule

if TYPE_CHECKING:
    from neobert.config import RunConfig
    from validators.facts_rehearsal import SpeedFacts

HARD_FLOOR = 0.01
FLOOR_SHARE = 0.5
"""Minimum share of the expected MFU; a power limit or a longer context costs less than half."""
TOLERANCE = 0.1
MAX_DATA_WAIT = 0.1
MAX_HOST_BOUND = 0.25


def _require_speed(facts: Facts) -> SpeedFacts:
    return require_measured(require_rehearsal(facts).speed, facts, "the pace")


@rehearsal_rule("PRF001", "device-left-idle", severity=Severity.FAIL, inapplicable=reason_without_gpu)
def device_left_idle(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that uses a very small share of its device's peak FLOP/s.

    ## What it does
    Measures the share of the device's peak FLOP/s that the model's own FLOPs reach (MFU). Fails below
    half of the profile's expectation, and below 1 % for any profile.

    ## Why is this bad?
    Every key may look right although the model is too small, the GPU waits, or the precision is wrong. A run
    of 24 hours at 0.004 % of two GPUs passed every review of its config; measuring for one minute reveals it.

    ## Example
    ```text
    hidden_size 128 and rows of 128 tokens on an A100: MFU 0.004 %
    ```

    ## Use instead
    ```text
    the model size and batch size of the profile; `bench` breaks down the time of a step
    ```
    """
    mfu = require_measured(
        _require_speed(facts).mfu, facts, "the peak FLOP/s of this device are not in the table, so MFU"
    )
    expected = 0.0 if run.profile is None else run.profile.expects.mfu
    floor = max(HARD_FLOOR, FLOOR_SHARE * expected)
    if mfu < floor:
        reason = f"half of the profile's {expected:.0%}" if floor > HARD_FLOOR else "the minimum"
        yield Violation(
            "model",
            f"MFU is {mfu:.3%} of the device's peak (at least {floor:.1%}, {reason})",
            "raise trainer.per_device_train_batch_size or the model size, or set trainer.timing_breakdown to "
            "see what each step waits for",
        )


@rehearsal_rule("PRF002", "unsteady-pace", severity=Severity.WARN, inapplicable=reason_without_gpu)
def unsteady_pace(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A throughput that changes during the rehearsal, or differs from earlier rehearsals or the profile.

    ## What it does
    Warns if tokens/s differ by more than 10 % from an earlier rehearsal of the same config on this device, or
    lie that much outside the profile's measured range (for a run with the profile's model, length, batch and
    precision); if later steps take 10 % more or less time than earlier ones; and if anything is compiled
    after the warm-up.

    ## Why is this bad?
    A throughput that drifts within a minute will not hold for a day, and a graph that is recompiled for every
    shape costs minutes each time.

    ## Example
    ```text
    291k tokens/s, but 352k last week: the GPU is hot, shared or throttled
    ```

    ## Use instead
    ```text
    GPU005 and GPU008 to check the device; packing for constant shapes
    ```
    """
    speed, rehearsal = _require_speed(facts), require_rehearsal(facts)
    hint = "compare with GPU005 and GPU008; `neobert-launch bench` compares two configs"
    baseline = rehearsal.baseline_tokens_per_second
    for fault in (*_differences_from_baseline(speed, baseline), *_differences_from_profile(run, speed)):
        yield Violation("trainer", fault, hint)
    first, last = _median_step_times_by_half(speed.line_step_times_s)
    if abs(last / first - 1) > TOLERANCE:
        message = (
            f"step time changed from {first:.3g} s to {last:.3g} s during the rehearsal "
            f"(limit {TOLERANCE:.0%})"
        )
        yield Violation("trainer", message, hint)
    if speed.recompiles:
        message = f"{counted(speed.recompiles, 'function')} recompiled after the warm-up"
        yield Violation(
            "trainer.torch_compile", message, "see the rehearsal's log for the reason for each recompilation"
        )


def _differences_from_baseline(speed: SpeedFacts, baseline: float | None) -> Iterator[str]:
    if baseline is not None and abs(speed.tokens_per_second / baseline - 1) > TOLERANCE:
        rates = f"{speed.tokens_per_second:,.0f} tokens/s, but {baseline:,.0f} in an earlier rehearsal"
        yield f"{rates} (limit {TOLERANCE:.0%})"


def _differences_from_profile(run: ResolvedRun, speed: SpeedFacts) -> Iterator[str]:
    expects = None if run.profile is None else run.profile.expects
    if (
        expects is None
        or expects.is_estimate
        or keys_differing_from_profile(run)
        or not expects.tokens_per_second
    ):
        return
    low, high = expects.tokens_per_second
    if not low * (1 - TOLERANCE) <= speed.tokens_per_second <= high * (1 + TOLERANCE):
        rates = f"{speed.tokens_per_second:,.0f} tokens/s, but the profile expects {low:,.0f} to {high:,.0f}"
        yield f"{rates} (tolerance {TOLERANCE:.0%})"


def _median_step_times_by_half(times_s: tuple[float, ...]) -> tuple[float, float]:
    from statistics import median

    middle = max(1, len(times_s) // 2)
    return median(times_s[:middle]), median(times_s[middle:] or times_s)


@rehearsal_rule("PRF003", "waiting-for-data", severity=Severity.WARN)
def waiting_for_data(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A device that waits for data.

    ## What it does
    Warns if more than 10 % of a step is spent waiting for data.

    ## Why is this bad?
    The device is idle while it waits. More data-loader threads or a faster disk avoid that.

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
    share = _require_speed(facts).data_wait_share
    if share > MAX_DATA_WAIT:
        yield Violation(
            "dataset.num_workers",
            f"{share:.0%} of each step is spent waiting for data (limit {MAX_DATA_WAIT:.0%})",
            "raise dataset.num_workers or dataset.prefetch_factor, or move the data to a faster disk",
        )


@rehearsal_rule("PRF004", "waiting-for-the-host", severity=Severity.WARN, inapplicable=reason_without_gpu)
def waiting_for_the_host(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU that waits for the host to launch its kernels.

    ## What it does
    Warns if in more than a quarter of the steps the GPU had nothing left to do when the host had launched the
    backward pass.

    ## Why is this bad?
    The kernels of a small model take less time than Python and the driver need to launch them one by one, so
    a faster GPU gains nothing, and one CPU core limits the throughput. CUDA graphs replay all launches of a
    step at once; larger microbatches give each kernel more to do.

    ## Example
    ```yaml
    model: {hidden_size: 512, num_hidden_layers: 12}
    trainer:
      per_device_train_batch_size: 64
      torch_compile: true
    ```

    ## Use instead
    ```yaml
    model: {hidden_size: 512, num_hidden_layers: 12}
    trainer:
      per_device_train_batch_size: 64
      torch_compile: true
      cuda_graphs: true
    ```
    """
    share = require_measured(
        _require_speed(facts).host_bound_share, facts, "how often the GPU waits for the host"
    )
    if share > MAX_HOST_BOUND:
        yield Violation(
            "trainer",
            f"the GPU waits for kernel launches in {share:.0%} of steps (limit {MAX_HOST_BOUND:.0%})",
            _fewer_launches_hint(run.config),
        )


def _fewer_launches_hint(config: RunConfig) -> str:
    larger = "raise trainer.per_device_train_batch_size"
    if config.trainer.cuda_graphs or "trainer.cuda_graphs" in spec_of(config).unread_keys:
        return larger
    edits = [fix for _, fix in cuda_graphs.cuda_graph_obstacles(config)]
    if "run on one GPU" in edits:
        return larger
    return " and ".join([*edits, "set trainer.cuda_graphs to true"]) + f", or {larger}"
