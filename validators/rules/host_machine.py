"""Host rules: driver, its version, and clock of the machine."""

from __future__ import annotations

import re

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, needed, rule

OLDEST_DRIVER = {13: "580.65.06", 12: "525.60.13", 11: "450.80.02"}
"""Oldest Linux driver per major version of CUDA, from the CUDA release notes."""
CLOCK_TOLERANCE_S = 60.0
FIRST_PLAUSIBLE_YEAR = 2024
SET_CLOCK = "set the clock: timedatectl set-ntp true, or ask the administrator"
NUMBER = re.compile(r"\d+")


@rule("HST011", "old-driver", severity=Severity.FAIL, level=Level.GPU, needs=("gpus", "software"))
def old_driver(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An NVIDIA driver that is older than the CUDA version of torch allows.

    ## What it does
    Compares the driver of each GPU with the oldest one that supports the CUDA version of torch:
    580.65.06 for CUDA 13, 525.60.13 for CUDA 12, 450.80.02 for CUDA 11. Only warns if HST008 computed
    on the devices: NVIDIA's forward compatibility packages make that possible on data-center GPUs. HST008
    checks for a build of torch without CUDA.

    ## Why is this bad?
    torch then finds no GPU, or fails at the first kernel that it compiles.

    ## Example
    ```text
    torch 2.13.0+cu130 with driver 550.54.15
    ```

    ## Use instead
    ```text
    driver 580.65.06 or newer, or a torch build for CUDA 12.6
    ```
    """
    cuda = needed(facts.software).torch_cuda
    oldest = OLDEST_DRIVER.get(release(cuda)[0]) if cuda else None
    if oldest is None:
        return
    imports = facts.imports
    computes = imports is not None and imports.device == "cuda" and not imports.kernel_error
    for driver in sorted({gpu.driver_version for gpu in facts.gpus or ()}):
        if is_older(driver, oldest):
            yield Violation(
                "",
                f"driver {driver} is older than {oldest}, which CUDA {cuda} of this torch needs",
                f"update the driver to {oldest} or newer, or install a torch build for an older CUDA",
                Severity.WARN if computes else None,
            )


@rule("HST012", "implausible-clock", severity=Severity.WARN, level=Level.HOST, needs=("host",))
def implausible_clock(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A system clock that is wrong, or not synchronized in a run on several nodes.

    ## What it does
    Warns if the clock is more than a minute earlier than the newest file of this installation, if it shows a
    year before 2024, and, for a run on several nodes, if the kernel reports that the clock is not
    synchronized (NTP, chrony). Synchronization is not checked on a single node: it compares no clocks, and
    virtual machines often rely on their host.

    ## Why is this bad?
    Expiry of receipts and waivers, time limits and TLS certificates depend on the clock, and logs of several
    nodes cannot be ordered without it.

    ## Example
    ```text
    a node that boots in 1970 because its clock battery is empty
    ```

    ## Use instead
    ```text
    timedatectl set-ntp true
    ```
    """
    host = needed(facts.host)
    year = facts.recorded_utc[:4]
    if host.clock_behind_s > CLOCK_TOLERANCE_S:
        message = (
            f"the system clock is {host.clock_behind_s / 3600:,.1f} hours "
            "earlier than the newest file of this installation"
        )
        yield Violation("", message, SET_CLOCK)
    elif year.isdecimal() and int(year) < FIRST_PLAUSIBLE_YEAR:
        yield Violation("", f"the system clock shows the year {year}", SET_CLOCK)
    if run.config.distributed.nnodes > 1 and host.is_clock_synchronized is False:
        message = f"the clock of {host.hostname} is not synchronized, but the run has several nodes"
        yield Violation("distributed.nnodes", message, SET_CLOCK)


def release(version: str) -> tuple[int, ...]:
    """Return the release numbers: `2.13.0+cpu` is (2, 13, 0), and `2.13.0rc1` is (2, 13, 0) too."""
    parts: list[int] = []
    for part in version.partition("+")[0].split("."):
        leading = NUMBER.match(part)
        if leading is None:
            break
        parts.append(int(leading[0]))
    return tuple(parts)


def is_older(version: str, oldest: str) -> bool:
    """Return whether `version` precedes `oldest`; missing numbers count as 0."""
    have, need = release(version), release(oldest)
    width = max(len(have), len(need))
    return _padded(have, width) < _padded(need, width)


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
