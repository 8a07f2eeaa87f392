"""Measured data and speed of a run, next to the plan's predictions."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.report.plan_view import Row
from launcher.terminal.numbers import show_count, show_duration, show_mib, show_number
from validators.facts import Facts


def text_rows(facts: Facts) -> Iterator[Row]:
    """Return the number of epochs; nothing without an inspection, or for a stream."""
    found = facts.prepared
    if found is not None and found.epochs is not None:
        epochs = show_number(found.epochs, 3)
        yield "epochs", epochs, f"the run's tokens / {show_count(found.num_tokens)} of prepared text"


def measured_rows(facts: Facts) -> Iterator[Row]:
    """Speed and memory as they were; nothing where nobody rehearsed."""
    found = facts.rehearsal
    if found is None:
        return
    where = f"rehearsed on {found.num_ranks} x {found.device_name} in {show_duration(found.duration_s)}"
    if found.speed is not None:
        mfu = "unknown" if found.speed.mfu is None else f"{found.speed.mfu:.1%}"
        yield "measured speed", f"{show_count(found.speed.tokens_per_second)} tokens/s, MFU {mfu}", where
    if found.memory is not None:
        memory = found.memory
        reason = f"{show_mib(memory.peak_allocated_mib)} allocated, context {show_mib(memory.context_mib)}"
        yield "measured peak", f"{show_mib(memory.peak_mib)} of {show_mib(memory.total_mib)}", reason
