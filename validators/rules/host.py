"""Host rules: software, repository, resources, tracker and scheduler of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from neobert.adapters import spec as adapters
from neobert.config.corpora import is_on_hub, list_corpora
from neobert.kernel_table import OPTIONAL_PACKAGES, install_line
from neobert.plan import Plan
from neobert.plurals import counted
from neobert.precision.libraries import enabled_conversions
from neobert.precision.library import Conversion
from neobert.trackers.table import TRACKERS, requested_trackers
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import CannotTellError, Violations, require_group, rule
from validators.thresholds import MEMORY_SHARE

if TYPE_CHECKING:
    from validators.facts_host import TrackerFacts

HUB_READER = "datasets"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
OLDEST = {
    "accelerate": "1.15",
    HUB_READER: "5.2",
    "numpy": "2.1",
    "psutil": "7",
    "pydantic": "2.13",
    "safetensors": "0.6",
    "tokenizers": "0.22",
    "torch": "2.11",
    "transformers": "5.17",
}
OLDEST_KERNELS = {
    package.name: (package.oldest, install_line(package)) for package in OPTIONAL_PACKAGES if package.oldest
}
"""Optional packages with kernels, which are checked if they are installed and the run trains on a GPU."""
SHM_MIB_PER_PROCESS = 64
FEWEST_OPEN_FILES = 1024

OLDEST_DRIVER = {13: "580.65.06", 12: "525.60.13", 11: "450.80.02"}
"""Oldest supported Linux driver per major version of CUDA, from the CUDA release notes."""
CLOCK_TOLERANCE_S = 60.0
FIRST_PLAUSIBLE_YEAR = 2024
SET_CLOCK = "set the clock: timedatectl set-ntp true, or ask the administrator"
NUMBER = re.compile(r"\d+")


@rule("HST001", "untested-versions", severity=Severity.FAIL, level=Level.HOST, needs=("software",))
def untested_versions(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Software that is missing, too old, or not in the tested set.

    ## What it does
    Fails for a Python outside 3.11 to 3.13 and for a package that is missing or older than the project's
    minimum; `datasets` only for text from the Hub. For a run on a GPU, also fails for an installed kernel
    package (flash-attn, flash-attn-4, quack-kernels, liger-kernel) older than its minimum; for a run with an
    adapter, if peft is missing; and for low precision, if its library is missing or too old for its recipes.
    Warns for a package that differs from the tested set in `constraints.txt`, which a wheel installs in
    `share/neobert-launch`. HST008 tests imports, HST011 compares the driver with the CUDA version of torch.

    ## Why is this bad?
    Signatures of attention kernels changed in three consecutive releases of torch. The failure comes at the
    first step, or stays unnoticed.

    ## Example
    ```text
    torch 2.9.1 is older than 2.11
    ```

    ## Use instead
    ```text
    pip install torch==2.13.0
    ```
    """
    software = require_group(facts.software)
    if not OLDEST_PYTHON <= release_numbers(software.python)[:2] <= NEWEST_PYTHON:
        message = f"Python {software.python} is not supported (3.11 to 3.13)"
        yield Violation("", message, "create the environment with Python 3.11, 3.12 or 3.13")
    yield from _violations_below_minimum(run, software.packages)
    if run.config.adapter.type is not None and adapters.PACKAGE not in software.packages:
        yield Violation("adapter.type", f"{adapters.PACKAGE} is not installed", adapters.INSTALL)
    for conversion in enabled_conversions(run.config):
        yield from _low_precision_violations(conversion, software.packages)
    if run.device == "cuda":
        yield from _old_kernel_violations(software.packages)
    differing = {
        name: pinned
        for name, pinned in sorted(software.pinned.items())
        if name in software.packages and release_numbers(software.packages[name]) != release_numbers(pinned)
    }
    if differing:
        versions = [
            f"{name} {software.packages[name]} (tested: {pinned})" for name, pinned in differing.items()
        ]
        hint = f"pip install {' '.join(f'{name}=={pinned}' for name, pinned in differing.items())}"
        yield Violation("", f"untested versions: {', '.join(versions)}", hint, Severity.WARN)


def _low_precision_violations(conversion: Conversion, packages: dict[str, str]) -> Iterator[Violation]:
    library, key = conversion.library, conversion.key("enable")
    version = packages.get(library.package)
    if version is None:
        yield Violation(key, f"{key} is true, but {library.package} is not installed", library.install)
    elif library.oldest and is_older(version, library.oldest):
        message = f"{key} is true, but {library.package} {version} is older than {library.oldest}"
        yield Violation(key, message, library.install)


def _violations_below_minimum(run: ResolvedRun, packages: dict[str, str]) -> Iterator[Violation]:
    reads_hub = any(map(is_on_hub, list_corpora(run.config.dataset)))
    for name, oldest in OLDEST.items():
        if name == HUB_READER and not reads_hub:
            continue
        version = packages.get(name)
        if version is None:
            yield Violation("", f"{name} is not installed", f"pip install '{name}>={oldest}'")
        elif is_older(version, oldest):
            yield Violation("", f"{name} {version} is older than {oldest}", f"pip install '{name}>={oldest}'")


def _old_kernel_violations(packages: dict[str, str]) -> Iterator[Violation]:
    for name, (oldest, install) in OLDEST_KERNELS.items():
        version = packages.get(name)
        if version is not None and is_older(version, oldest):
            yield Violation("", f"{name} {version} is older than {oldest}", install)


@rule("HST002", "unrecorded-changes", severity=Severity.WARN, level=Level.HOST, needs=("git",))
def unrecorded_changes(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Uncommitted changes that are not stored with the run.

    ## What it does
    Warns if the working tree differs from its commit and the difference was not stored. The tree is that
    of the code if git tracks it, otherwise the one in which the run is launched. Untracked Python files are
    stored too, other untracked files are listed. Outside a repository the installed version identifies the
    code.

    ## Why is this bad?
    A result without its code can be neither reproduced nor refuted.

    ## Example
    ```text
    neobert-launch preflight, with edits in neobert/training
    ```

    ## Use instead
    ```text
    git commit -a, or `neobert-launch train`, which stores the difference in the run directory
    ```
    """
    git = require_group(facts.git)
    if git.is_repository and git.is_dirty and not git.diff_saved:
        base = git.sha[:12] or "a repository without commits"
        yield Violation("", f"uncommitted changes on {base} are not stored", "commit the changes")


@rule("HST003", "cramped-host", severity=Severity.WARN, level=Level.HOST, needs=("host",))
def cramped_host(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A host with too little memory, shared memory, file descriptors or CPUs for the run.

    ## What it does
    Compares available memory with the needs of this node's processes (on a CPU the whole step, on a GPU
    the copy of a checkpoint that is being written), shared memory with 64 MiB per process if there are
    several, the open-file limit with 1,024, and CPUs with the data-loader threads.

    ## Why is this bad?
    The kernel kills a process that exceeds memory without a message, and with Docker's default of 64 MiB
    shared memory a collective fails with a bus error.

    ## Example
    ```text
    docker run IMAGE neobert-launch train --nproc-per-node 4
    ```

    ## Use instead
    ```text
    docker run --shm-size 1g IMAGE neobert-launch train --nproc-per-node 4
    ```
    """
    host, processes = require_group(facts.host), run.config.distributed.nproc_per_node
    needed_mib = plan.checkpoint_mib.value if plan.assumptions.is_cuda else plan.memory_mib.value * processes
    if needed_mib > MEMORY_SHARE * host.ram_available_mib:
        available = f"{host.ram_available_mib:,} MiB are available"
        message = f"the run needs {needed_mib:,.0f} MiB of host memory, {available}"
        hint = "free host memory, or lower trainer.per_device_train_batch_size"
        yield Violation("trainer.per_device_train_batch_size", message, hint)
    if processes > 1 and host.shm_free_mib < SHM_MIB_PER_PROCESS * processes:
        needed_mib = SHM_MIB_PER_PROCESS * processes
        message = (
            f"/dev/shm has {host.shm_free_mib:,} MiB free, {processes} processes need {needed_mib:,} MiB"
        )
        yield Violation("distributed.nproc_per_node", message, "run the container with --shm-size 1g")
    if host.open_files_limit < FEWEST_OPEN_FILES:
        message = f"the open-file limit is {host.open_files_limit:,}, but a run needs {FEWEST_OPEN_FILES:,}"
        yield Violation("", message, "ulimit -n 4096")
    threads = processes * run.config.dataset.num_workers
    if threads > host.cpu_count:
        message = (
            f"the run has {threads} data-loader threads, but the host has {counted(host.cpu_count, 'CPU')}"
        )
        yield Violation(
            "dataset.num_workers", message, f"set dataset.num_workers to {host.cpu_count // processes}"
        )


def _why_no_tracker(run: ResolvedRun, plan: Plan) -> str:
    return "" if _requested_trackers(run) else "the only tracker is jsonl"


def _requested_trackers(run: ResolvedRun) -> tuple[str, ...]:
    return requested_trackers(run.config.trackers, with_wandb=run.config.wandb.enabled)


@rule(
    "HST004",
    "unreachable-tracker",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("tracker",),
    inapplicable=_why_no_tracker,
)
def unreachable_tracker(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An experiment tracker that is enabled but cannot be used.

    ## What it does
    Fails if the package of a tracker in `trackers` is not installed, if this user cannot write to its
    local folder, and if wandb is online without credentials. Warns if the wandb server refuses
    connections: training then continues without wandb. In offline mode wandb writes locally. metrics.jsonl
    is always written. `WANDB_MODE` takes precedence over `wandb.mode`.

    ## Why is this bad?
    A tracker that fails after the launch loses the curves of the run, and nobody notices before they look.

    ## Example
    ```yaml
    trackers: [wandb]
    wandb:
      mode: online   # and no WANDB_API_KEY
    ```

    ## Use instead
    ```yaml
    trackers: [wandb]
    wandb:
      mode: offline
    ```
    """
    tracker = require_group(facts.tracker)
    names = _requested_trackers(run)
    is_installed = {"wandb": tracker.is_installed} | tracker.packages
    for name in names:
        if name not in is_installed:
            raise CannotTellError(
                f"the probe of this machine did not check tracker {name}; run preflight again"
            )
        if not is_installed[name]:
            yield Violation("trackers", f"{name} is not installed", TRACKERS[name].install)
        if folder := tracker.unwritable.get(name):
            yield Violation("trackers", f"{name} cannot write to {folder}", f"make {folder} writable")
    if "wandb" in names and is_installed["wandb"] and not tracker.is_offline:
        yield from _wandb_violations(tracker)


def _wandb_violations(tracker: TrackerFacts) -> Violations:
    if not tracker.has_credentials:
        hint = "set WANDB_API_KEY, or set wandb.mode to offline"
        yield Violation("wandb.mode", "wandb.mode is online, but there are no credentials", hint)
    elif tracker.is_reachable is False:
        yield Violation(
            "wandb.mode",
            "wandb's server does not accept connections: training would continue without wandb",
            "set wandb.mode to offline; `wandb sync` uploads the run later",
            Severity.WARN,
        )


@rule("HST011", "old-driver", severity=Severity.FAIL, level=Level.GPU, needs=("gpus", "software"))
def _old_driver(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    cuda = require_group(facts.software).torch_cuda
    oldest = OLDEST_DRIVER.get(release_numbers(cuda)[0]) if cuda else None
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
def _implausible_clock(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    host = require_group(facts.host)
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


def release_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (2, 13, 0) for `2.13.0+cpu` and for `2.13.0rc1`."""
    parts: list[int] = []
    for part in version.partition("+")[0].split("."):
        leading = NUMBER.match(part)
        if leading is None:
            break
        parts.append(int(leading[0]))
    return tuple(parts)


def is_older(version: str, oldest: str) -> bool:
    """Return whether `version` is older than `oldest`; missing numbers count as 0."""
    have, need = release_numbers(version), release_numbers(oldest)
    width = max(len(have), len(need))
    return _pad_release(have, width) < _pad_release(need, width)


def _pad_release(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
