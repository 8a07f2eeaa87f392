"""HST, the machine under the process: its driver and its clock."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.versions import is_older, release

OLDEST_DRIVER = {13: "580.65.06", 12: "525.60.13", 11: "450.80.02"}
"""By major version of CUDA: the oldest Linux driver for its minor versions (release notes of CUDA)."""
CLOCK_TOLERANCE_S = 60.0
FIRST_PLAUSIBLE_YEAR = 2024
SET_CLOCK = "set the clock: timedatectl set-ntp true, or ask whoever runs the machine"


@rule("HST011", "old-driver", severity=Severity.FAIL, level=Level.GPU, needs=("gpus", "software"))
def old_driver(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An NVIDIA driver that is older than the CUDA version of torch allows.

    ## What it does
    Compares the driver of each GPU with the oldest one that runs the CUDA version that torch was built with:
    580.65.06 for CUDA 13, 525.60.13 for CUDA 12, 450.80.02 for CUDA 11. Only warns where HST008 has computed
    on the devices: NVIDIA's forward compatibility packages make that possible on data-center GPUs. A build of
    torch without CUDA is judged by HST008.

    ## Why is this bad?
    Torch then finds no GPU, or fails at the first kernel that it has to compile.

    ## Example
    ```text
    torch 2.13.0+cu130 with driver 550.54.15
    ```

    ## Use instead
    ```text
    driver 580.65.06 or newer, or torch from the index of CUDA 12.6
    ```
    """
    assert facts.software is not None
    cuda = facts.software.torch_cuda
    oldest = OLDEST_DRIVER.get(release(cuda)[0]) if cuda else None
    if oldest is None:
        return
    imports = facts.imports
    computes = imports is not None and imports.device == "cuda" and not imports.kernel_error
    for driver in sorted({gpu.driver_version for gpu in facts.gpus or ()}):
        if is_older(driver, oldest):
            yield Violation(
                "",
                f"driver {driver} is older than {oldest}, the oldest for CUDA {cuda} of this torch",
                f"update the driver to {oldest} or newer, or install a torch build for an older CUDA",
                Severity.WARN if computes else None,
            )


@rule("HST012", "implausible-clock", severity=Severity.WARN, level=Level.HOST, needs=("host",))
def implausible_clock(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A system clock that is wrong, or that nothing keeps right on a run of several nodes.

    ## What it does
    Warns where the clock is more than a minute earlier than the newest file of this installation, where it
    shows a year before 2024, and, for a run of several nodes, where the kernel says that its clock is not
    synchronized (NTP, chrony). On one node nothing is compared with another clock, and virtual machines often
    leave this to their host, so there it is not judged.

    ## Why is this bad?
    Receipts and waivers expire by the clock, a walltime is counted by it, TLS certificates are refused by it,
    and logs of several nodes cannot be put in order.

    ## Example
    ```text
    a node that starts in 1970, because the battery of its clock is empty
    ```

    ## Use instead
    ```text
    timedatectl set-ntp true
    ```
    """
    host = facts.host
    assert host is not None
    year = facts.recorded_utc[:4]
    if host.clock_behind_s > CLOCK_TOLERANCE_S:
        message = (
            f"the system clock is {host.clock_behind_s / 3600:,.1f} hours "
            "earlier than the newest file of this installation"
        )
        yield Violation("", message, SET_CLOCK)
    elif year.isdecimal() and int(year) < FIRST_PLAUSIBLE_YEAR:
        yield Violation("", f"the system clock says {year}", SET_CLOCK)
    if run.config.distributed.nnodes > 1 and host.is_clock_synchronized is False:
        message = f"the clock of {host.hostname} is not synchronized, and the run has several nodes"
        yield Violation("distributed.nnodes", message, SET_CLOCK)
