"""TEL: what a run tells of itself, and who watches it."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import TelemetryFacts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rule

MIB_PER_GIB = 1024
DRIVER_TOLERANCE = 0.05
DRIVER_SLACK_MIB = 256
"""Modules that were loaded after the context was measured: more than 5 % only of a toy."""
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
HINT = "units stand in names: _mib is bytes // 2**20, _gib is _mib / 1024 (neobert.training.telemetry.memory)"


@rule("TEL001", "telemetry-not-true", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def telemetry_not_true(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Heartbeats that lack a field, mix units, or say another size than the driver does.

    ## What it does
    Checks every field of the rehearsal's heartbeat and its type, that `_gib` is `_mib` / 1024, that what the
    allocator holds and the device's context together are within 5 % of what the driver counts for the
    process, and the process's memory within 3 % of what the operating system counts. Where a driver does not
    count by process, and others came to the device or left it meanwhile, it is unknown.

    ## Why is this bad?
    MiB under the label GB made 21 GiB look like a card that is full, and hid for a day that the run was a
    toy.

    ## Example
    ```text
    "gpu_mem_alloc_gib": 21504.0
    ```

    ## Use instead
    ```text
    "gpu_mem_alloc_mib": 21504, "gpu_mem_alloc_gib": 21.0
    ```
    """
    found = rehearsal_of(facts)
    told = measured(found.telemetry, facts, "the heartbeat")
    faults = [*_schema(told), *_units(told), *_system(told)]
    if found.device == "cuda":
        context_mib = measured(found.memory, facts, "memory of the device").context_mib
        faults += _driver(told, context_mib)
    yield from (Violation("trainer.logging_steps", fault, HINT) for fault in faults)
    if found.device == "cuda" and told.driver_mib is None and not faults:
        raise CannotTellError(told.driver_reason or "the driver did not say what the rehearsal took")


def _schema(told: TelemetryFacts) -> Iterator[str]:
    for name, kinds in FIELDS.items():
        kind = told.fields.get(name, "missing")
        if kind not in kinds:
            yield f"the heartbeat's {name} is {kind}, and not {' or '.join(kinds)}"


def _units(told: TelemetryFacts) -> Iterator[str]:
    pairs = {
        "gpu_mem_alloc": (told.gpu_mem_alloc_mib, told.gpu_mem_alloc_gib),
        "gpu_mem_reserved": (told.gpu_mem_reserved_mib, told.gpu_mem_reserved_gib),
    }
    for name, (mib, gib) in pairs.items():
        if (mib is None) != (gib is None) or (mib is not None and gib != mib / MIB_PER_GIB):
            yield f"{name}_mib is {mib} and {name}_gib is {gib}"


def _driver(told: TelemetryFacts, context_mib: int) -> Iterator[str]:
    if told.gpu_mem_reserved_mib is None:
        yield "the heartbeat says nothing of the device's memory"
        return
    said = told.gpu_mem_reserved_mib + context_mib
    if told.driver_mib is None:
        return
    slack = max(DRIVER_TOLERANCE * told.driver_mib, DRIVER_SLACK_MIB)
    if abs(said - told.driver_mib) > slack:
        yield (
            f"the allocator and the context hold {said:,.0f} MiB by the heartbeat, and "
            f"{told.driver_mib:,} MiB by the driver"
        )


def _system(told: TelemetryFacts) -> Iterator[str]:
    if abs(told.host_rss_mib / told.system_rss_mib - 1) > SYSTEM_TOLERANCE:
        yield (
            f"the process holds {told.host_rss_mib:,.0f} MiB by the heartbeat, and "
            f"{told.system_rss_mib:,.0f} MiB by the operating system"
        )


@rule("TEL002", "stall-goes-unnoticed", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def stall_goes_unnoticed(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that stands still, and nobody outside of it notices or can end it.

    ## What it does
    Has a child of the rehearsal stand still, watches it from the launcher's process with the watchdog that
    a run has, in seconds where a run is given minutes, and asks that the stall is noticed within twice its
    budget and that no process of the child is left afterwards.

    ## Why is this bad?
    A hung collective or a dead disk stops a run without an error. Whatever watches from inside the process
    hangs with it, and the GPUs are paid for until somebody looks.

    ## Example
    ```text
    a watchdog thread that needs the interpreter's lock
    ```

    ## Use instead
    ```text
    progress on disk, watched by the process that started the run
    ```
    """
    found = measured(rehearsal_of(facts).watchdog, facts, "a stalled child")
    hint = "look at the file system under trainer.output_dir: heartbeats are watched there"
    if found.detected_s is None or found.detected_s > 2 * found.budget_s:
        when = "never" if found.detected_s is None else f"after {found.detected_s:.1f} s"
        message = f"a stall was noticed {when}; {found.budget_s:g} s are its budget"
        yield Violation("trainer.logging_steps", message, hint)
    if found.survivors:
        message = f"{found.survivors} processes of a stalled child could not be killed"
        yield Violation("trainer.logging_steps", message, "a process that hangs in the driver: see GPU004")
