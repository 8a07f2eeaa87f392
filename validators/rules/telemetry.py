"""Telemetry rules: accuracy of the heartbeat, and hang detection from outside the process."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from neobert.config.schema import WatchdogConfig
from neobert.plan import Plan
from neobert.plurals import counted
from neobert.schema_fields import LONGEST_SILENCE_S
from neobert.units import MIB_PER_GIB
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import require_measured, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule, rule

if TYPE_CHECKING:
    from validators.facts_rehearsal import TelemetryFacts

DRIVER_TOLERANCE = 0.05
DRIVER_SLACK_MIB = 256
"""Tolerance in MiB for modules loaded after the context was measured; it exceeds 5 % for tiny models only."""
SYSTEM_TOLERANCE = 0.03
NUMBER = ("int", "float")
FIELDS = {
    "ts_utc": ("str",),
    "seq": ("int",),
    "rank": ("int",),
    "phase": ("str",),
    "step": ("int",),
    "max_steps": ("int",),
    "tokens_total": ("int",),
    "tokens_per_second": (*NUMBER, "null"),
    "mfu": (*NUMBER, "null"),
    "loss": (*NUMBER, "null"),
    "learning_rate": (*NUMBER, "null"),
    "grad_norm": (*NUMBER, "null"),
    "gpu_mem_alloc_mib": ("int", "null"),
    "gpu_mem_alloc_gib": (*NUMBER, "null"),
    "gpu_mem_reserved_mib": ("int", "null"),
    "gpu_mem_reserved_gib": (*NUMBER, "null"),
    "gpu_mem_total_mib": ("int", "null"),
    "host_rss_mib": ("int",),
    "attention_kernel": ("str", "null"),
    "compute_dtype": ("str",),
    "data_wait_ms": (*NUMBER, "null"),
    "last_checkpoint_step": ("int", "null"),
    "last_checkpoint_age_s": (*NUMBER, "null"),
    "work_at_risk_min": NUMBER,
    "eta_s": (*NUMBER, "null"),
}
USUAL_TIMEOUT = 10
"""Multiple of the measured duration, the same as for timeouts that the watchdog learns from a run."""
HINT = "report this as a bug: _mib is bytes // 2**20, _gib is _mib / 1024 (telemetry/memory.py)"


@rehearsal_rule("TEL001", "telemetry-not-true", severity=Severity.FAIL)
def telemetry_not_true(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A heartbeat with missing fields, wrong units, or memory that differs from the driver's figures.

    ## What it does
    Checks every field of the rehearsal's heartbeat and its type, that `_gib` is `_mib` / 1024, that the
    allocator's reserved memory plus the device context are within 5 % of the driver's figure for the
    process, and that process memory is within 3 % of the operating system's figure. Unknown if the driver
    does not report memory per process while other processes start or stop on the device.

    ## Why is this bad?
    MiB labelled as GB once made 21 GiB look like a full GPU, and hid for a day that the run was
    tiny.

    ## Example
    ```text
    "gpu_mem_alloc_gib": 21504.0
    ```

    ## Use instead
    ```text
    "gpu_mem_alloc_mib": 21504, "gpu_mem_alloc_gib": 21.0
    ```
    """
    rehearsal = require_rehearsal(facts)
    telemetry = require_measured(rehearsal.telemetry, facts, "the heartbeat")
    faults = [*_field_type_faults(telemetry), *_unit_faults(telemetry), *_process_memory_faults(telemetry)]
    if rehearsal.device == "cuda":
        context_mib = require_measured(rehearsal.memory, facts, "device memory").context_mib
        faults += _driver_memory_faults(telemetry, context_mib)
    yield from (Violation("trainer.logging_steps", fault, HINT) for fault in faults)
    if rehearsal.device == "cuda" and telemetry.driver_mib is None and not faults:
        raise CannotTellError(telemetry.driver_reason or "the driver did not report the rehearsal's memory")


def _field_type_faults(telemetry: TelemetryFacts) -> Iterator[str]:
    for name, kinds in FIELDS.items():
        kind = telemetry.fields.get(name, "missing")
        if kind not in kinds:
            yield f"the heartbeat's {name} is {kind}, not {' or '.join(kinds)}"


def _unit_faults(telemetry: TelemetryFacts) -> Iterator[str]:
    pairs = {
        "gpu_mem_alloc": (telemetry.gpu_mem_alloc_mib, telemetry.gpu_mem_alloc_gib),
        "gpu_mem_reserved": (telemetry.gpu_mem_reserved_mib, telemetry.gpu_mem_reserved_gib),
    }
    for name, (mib, gib) in pairs.items():
        if (mib is None) != (gib is None) or (mib is not None and gib != mib / MIB_PER_GIB):
            yield f"{name}_mib is {mib}, but {name}_gib is {gib}"


def _driver_memory_faults(telemetry: TelemetryFacts, context_mib: int) -> Iterator[str]:
    if telemetry.gpu_mem_reserved_mib is None:
        yield "the heartbeat has no device memory"
        return
    reported = telemetry.gpu_mem_reserved_mib + context_mib
    if telemetry.driver_mib is None:
        return
    slack = max(DRIVER_TOLERANCE * telemetry.driver_mib, DRIVER_SLACK_MIB)
    if abs(reported - telemetry.driver_mib) > slack:
        yield (
            f"device memory is {reported:,.0f} MiB in the heartbeat (allocator and context), but "
            f"{telemetry.driver_mib:,} MiB in the driver (tolerance {slack:,.0f} MiB)"
        )


def _process_memory_faults(telemetry: TelemetryFacts) -> Iterator[str]:
    if abs(telemetry.host_rss_mib / telemetry.system_rss_mib - 1) > SYSTEM_TOLERANCE:
        yield (
            f"process memory is {telemetry.host_rss_mib:,.0f} MiB in the heartbeat, but "
            f"{telemetry.system_rss_mib:,.0f} MiB in the operating system (tolerance {SYSTEM_TOLERANCE:.0%})"
        )


@rule("TEL003", "timeout-below-a-step", severity=Severity.FAIL, level=Level.STATIC)
def timeout_below_a_step(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A watchdog limit that is shorter than a normal step.

    ## What it does
    Compares `watchdog.compile_limit_s` and `watchdog.step_limit_s` with the step time (measured, or derived
    from FLOPs and the expected MFU of the profile).

    ## Why is this bad?
    The watchdog sees no progress until a step ends. A shorter timeout kills a healthy run in its first
    minutes and again after each restart, until `watchdog.max_restarts` is reached.

    ## Example
    ```yaml
    watchdog:
      step_limit_s: 5   # a step takes 12 s
    ```

    ## Use instead
    ```yaml
    watchdog:
      step_limit_s: 120
    ```
    """
    limits, step_s = run.config.watchdog, plan.step_time_s
    duration = f"a step takes {step_s.value:,.3g} s ({step_s.reason})"
    for key in ("compile_limit_s", "step_limit_s"):
        yield from _timeout_violations(limits, key, step_s.value, duration)


@rehearsal_rule("TEL004", "timeout-below-a-save", severity=Severity.FAIL)
def timeout_below_a_save(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A watchdog that takes the last save, or an evaluation, for a hang.

    ## What it does
    Compares `watchdog.save_limit_s` with the duration of a save in the rehearsal, and
    `watchdog.evaluation_limit_s` with its slowest microbatch of an evaluation.

    ## Why is this bad?
    The last save blocks a run until the checkpoint is written and verified. A shorter timeout kills the run
    during that save, and again after each restart: it never ends, and its last steps are lost.

    ## Example
    ```yaml
    watchdog:
      save_limit_s: 20   # a checkpoint takes 45 s
    ```

    ## Use instead
    ```yaml
    watchdog:
      save_limit_s: 450
    ```
    """
    limits, rehearsal = run.config.watchdog, require_rehearsal(facts)
    save_s = require_measured(rehearsal.save_s, facts, "the time of a save")
    evaluation = require_measured(rehearsal.evaluation, facts, "the evaluation")
    yield from _timeout_violations(limits, "save_limit_s", save_s, f"a save took {save_s:,.3g} s")
    if evaluation.microbatch_s is not None:
        took = f"a microbatch of an evaluation took {evaluation.microbatch_s:,.3g} s"
        yield from _timeout_violations(limits, "evaluation_limit_s", evaluation.microbatch_s, took)


def _timeout_violations(limits: WatchdogConfig, key: str, duration_s: float, duration: str) -> Violations:
    limit_s = getattr(limits, key)
    if limit_s <= duration_s:
        usual_s = ceil(USUAL_TIMEOUT * duration_s)
        if usual_s <= LONGEST_SILENCE_S:
            hint = f"set watchdog.{key} to {usual_s} or more"
        elif duration_s < LONGEST_SILENCE_S:
            hint = f"set watchdog.{key} to {LONGEST_SILENCE_S}"
        else:
            hint = "lower the sizes of the model or of the batch: no limit is longer than a week"
        yield Violation(f"watchdog.{key}", f"watchdog.{key} is {limit_s:g}, but {duration}", hint)


@rehearsal_rule("TEL002", "stall-goes-unnoticed", severity=Severity.FAIL)
def stall_goes_unnoticed(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A hang that is not detected, or cannot be ended, from outside the process.

    ## What it does
    Makes a child of the rehearsal hang, watches it from the launcher's process with the run's own watchdog
    (with a timeout of seconds instead of minutes), and requires that the hang is detected within twice its
    timeout and that no process of the child survives.

    ## Why is this bad?
    A hung collective or a dead disk stops a run without an error. A monitor inside the process
    hangs with it, and the GPUs are paid for until someone notices.

    ## Example
    ```text
    a watchdog thread that needs the GIL
    ```

    ## Use instead
    ```text
    progress on disk, watched by the process that launched the run
    ```
    """
    watchdog = require_measured(require_rehearsal(facts).watchdog, facts, "hang detection")
    hint = "check the file system of trainer.output_dir, where heartbeats are written"
    if watchdog.detected_s is None or watchdog.detected_s > 2 * watchdog.budget_s:
        when = "never" if watchdog.detected_s is None else f"after {watchdog.detected_s:.1f} s"
        message = f"a hang was detected {when} (timeout {watchdog.budget_s:g} s)"
        yield Violation("trainer.logging_steps", message, hint)
    if watchdog.survivors:
        message = f"{counted(watchdog.survivors, 'process', 'processes')} of a hung child could not be killed"
        yield Violation(
            "trainer.logging_steps", message, "look for a process that hangs in the GPU driver (rule GPU004)"
        )
