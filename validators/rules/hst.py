"""HST: the host's software, repository, limits and services."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.install_hints import INSTALL
from neobert.plan import Plan
from neobert.plurals import counted
from neobert.trackers.table import TRACKERS, requested
from profiles.registry import ResolvedRun
from validators.facts import Facts, TrackerFacts
from validators.finding import Level, Severity, Violation
from validators.remaining import seconds_left, what_is_left
from validators.rule import CannotTellError, Violations, rule
from validators.thresholds import MEMORY_SHARE
from validators.versions import is_older, release

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
OLDEST = {
    "accelerate": "1.15",
    "datasets": "5.2",
    "numpy": "2.1",
    "psutil": "7",
    "pydantic": "2.13",
    "safetensors": "0.6",
    "tokenizers": "0.22",
    "torch": "2.11",
    "transformers": "5.17",
}
OLDEST_KERNELS = {
    "flash-attn": ("2.8", INSTALL["flash"]),
    "flash-attn-4": ("4.0.0", INSTALL["fused"]),
    "liger-kernel": ("0.8", INSTALL["liger"]),
    "quack-kernels": ("0.6", INSTALL["fused"]),
}
"""Optional packages with kernels: judged where they are installed and the run trains on a GPU."""
SHM_MIB_PER_PROCESS = 64
FEWEST_OPEN_FILES = 1024
SAVES_OF_WARNING = 3
WRITE_MIB_PER_S = 200


@rule("HST001", "untested-versions", severity=Severity.FAIL, level=Level.HOST, needs=("software",))
def untested_versions(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Software that is missing, too old, or not what was tested together.

    ## What it does
    Fails for a Python outside 3.11 to 3.13 and for a package that is missing or older than the project's
    minimum; for a run on a GPU also for an installed package of kernels (flash-attn, flash-attn-4,
    quack-kernels, liger-kernel) that is older than its minimum. Warns for a package that differs from the
    tested set in `constraints.txt`, which a wheel installs under `share/neobert-launch`. HST008 tries whether
    packages import, HST011 compares the driver with the CUDA version of torch.

    ## Why is this bad?
    Signatures of attention kernels changed in three consecutive releases of torch. The error comes at the
    first step, or not at all.

    ## Example
    ```text
    torch 2.9.1 is installed, 2.11 is the oldest that works
    ```

    ## Use instead
    ```text
    pip install torch==2.13.0
    ```
    """
    software = facts.software
    assert software is not None
    if not OLDEST_PYTHON <= release(software.python)[:2] <= NEWEST_PYTHON:
        yield Violation("", f"Python {software.python} is none of 3.11 to 3.13", "use one of them")
    yield from _below_minimum(software.packages)
    if run.device == "cuda":
        yield from _old_kernels(software.packages)
    differing = {
        name: pinned
        for name, pinned in sorted(software.pinned.items())
        if name in software.packages and release(software.packages[name]) != release(pinned)
    }
    if differing:
        told = [f"{name} {software.packages[name]} (tested: {pinned})" for name, pinned in differing.items()]
        hint = f"pip install {' '.join(f'{name}=={pinned}' for name, pinned in differing.items())}"
        yield Violation("", f"not the tested versions: {', '.join(told)}", hint, Severity.WARN)


def _below_minimum(packages: dict[str, str]) -> Iterator[Violation]:
    for name, oldest in OLDEST.items():
        version = packages.get(name)
        if version is None:
            yield Violation("", f"{name} is not installed", f"pip install '{name}>={oldest}'")
        elif is_older(version, oldest):
            yield Violation("", f"{name} {version} is older than {oldest}", f"pip install '{name}>={oldest}'")


def _old_kernels(packages: dict[str, str]) -> Iterator[Violation]:
    for name, (oldest, install) in OLDEST_KERNELS.items():
        version = packages.get(name)
        if version is not None and is_older(version, oldest):
            yield Violation("", f"{name} {version} is older than {oldest}", install)


@rule("HST002", "unrecorded-changes", severity=Severity.WARN, level=Level.HOST, needs=("git",))
def unrecorded_changes(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Uncommitted changes that nothing records.

    ## What it does
    Warns where the working tree differs from its commit and the difference was not stored. The tree is that
    of the code, wherever the run is launched, where git keeps it; else the one that the run is launched from.
    Python files that git does not know are stored as well, others are named. Outside a repository the
    installed version says what runs.

    ## Why is this bad?
    A result whose code is gone cannot be repeated, and cannot be doubted either.

    ## Example
    ```text
    neobert-launch preflight, with edits in neobert/training
    ```

    ## Use instead
    ```text
    git commit -a, or train: it stores the difference in the run directory
    ```
    """
    git = facts.git
    assert git is not None
    if git.is_repository and git.is_dirty and not git.diff_saved:
        yield Violation(
            "", f"uncommitted changes on {git.sha[:12] or 'no commit'} are not stored", "commit them"
        )


@rule("HST003", "cramped-host", severity=Severity.WARN, level=Level.HOST, needs=("host",))
def cramped_host(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A host with too little memory, shared memory, open files or processors for the run.

    ## What it does
    Compares available memory with what the processes of this node need (on a CPU the whole step, on a GPU
    the copy of a checkpoint that is being written), shared memory with 64 MiB a process where there are
    several, the limit of open files with 1,024, and processors with the threads that build batches.

    ## Why is this bad?
    The kernel kills a process that takes too much and gives no reason; Docker's 64 MiB of shared memory
    stop a collective with a bus error.

    ## Example
    ```text
    docker run IMAGE neobert-launch train --nproc-per-node 4
    ```

    ## Use instead
    ```text
    docker run --shm-size 1g IMAGE neobert-launch train --nproc-per-node 4
    ```
    """
    host, processes = facts.host, run.config.distributed.nproc_per_node
    assert host is not None
    needed = plan.checkpoint_mib.value if plan.assumptions.is_cuda else plan.memory_mib.value * processes
    if needed > MEMORY_SHARE * host.ram_available_mib:
        message = (
            f"{needed:,.0f} MiB of host memory are needed and {host.ram_available_mib:,} MiB are available"
        )
        yield Violation(
            "trainer.per_device_train_batch_size", message, "free memory, or lower the batch per device"
        )
    if processes > 1 and host.shm_free_mib < SHM_MIB_PER_PROCESS * processes:
        message = f"/dev/shm has {host.shm_free_mib:,} MiB free for {processes} processes"
        yield Violation("distributed.nproc_per_node", message, "mount it larger: docker run --shm-size 1g")
    if host.open_files_limit < FEWEST_OPEN_FILES:
        yield Violation("", f"only {host.open_files_limit:,} files may be open at once", "ulimit -n 4096")
    threads = processes * run.config.dataset.num_workers
    if threads > host.cpu_count:
        message = f"{threads} threads build batches on {counted(host.cpu_count, 'processor')}"
        yield Violation("dataset.num_workers", message, "lower dataset.num_workers")


def _tracks_nothing(run: ResolvedRun, plan: Plan) -> str:
    return "" if requested(run.config) else "trackers names none but jsonl"


@rule(
    "HST004",
    "unreachable-tracker",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("tracker",),
    inapplicable=_tracks_nothing,
)
def unreachable_tracker(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An experiment tracker that the run asks for and cannot use.

    ## What it does
    Fails where the package of a tracker in `trackers` is not installed, where this user cannot write to its
    local folder, and where wandb is online without credentials. Warns where wandb's server takes no
    connection: training then continues without wandb. Offline, wandb writes locally. metrics.jsonl is always
    written. `WANDB_MODE` takes precedence over `wandb.mode`.

    ## Why is this bad?
    A tracker that fails after the launch costs the curves of the run, and nobody notices before they look.

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
    found = facts.tracker
    assert found is not None
    names = requested(run.config)
    is_installed = {"wandb": found.is_installed} | found.packages
    for name in names:
        if name not in is_installed:
            raise CannotTellError(f"the facts have no record of tracker {name}")
        if not is_installed[name]:
            yield Violation("trackers", f"{name} is not installed", TRACKERS[name].install)
        if folder := found.unwritable.get(name):
            yield Violation("trackers", f"{name} cannot write to {folder}", f"make {folder} writable")
    if "wandb" in names and is_installed["wandb"] and not found.is_offline:
        yield from _of_wandb_online(found)


def _of_wandb_online(found: TrackerFacts) -> Violations:
    if not found.has_credentials:
        yield Violation(
            "wandb.mode", "wandb is online without credentials", "set WANDB_API_KEY, or wandb.mode to offline"
        )
    elif found.is_reachable is False:
        yield Violation(
            "wandb.mode",
            "wandb's server does not accept connections: training would continue without wandb",
            "set wandb.mode to offline; `wandb sync` uploads the run later",
            Severity.WARN,
        )


@rule("HST005", "abrupt-walltime", severity=Severity.FAIL, level=Level.HOST, needs=("scheduler",))
def abrupt_walltime(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A batch job that is killed before it can save.

    ## What it does
    In a job whose time ends before the run does, asks that the scheduler sends a signal at least three
    times the time of a save before the kill; 200 MiB/s are assumed for the write. Where it does, an end
    before the ETA is a warning: the job has to be queued again. So it is where Slurm tells the job its end
    (`SLURM_JOB_END_TIME`): the trainer then stops ahead of it by the clock. Of a run that goes on from a
    verified checkpoint, the steps that are left are judged. Without a scheduler there is nothing to judge.

    ## Why is this bad?
    A killed job loses all since its last save, in the worst case each time it is queued.

    ## Example
    ```text
    #SBATCH --time=24:00:00
    ```

    ## Use instead
    ```text
    #SBATCH --time=24:00:00 --signal=B:TERM@120 --requeue
    ```
    """
    scheduler = facts.scheduler
    assert scheduler is not None
    left_s, needed_s = scheduler.walltime_left_s, seconds_left(run, plan, facts)
    if not scheduler.name or left_s is None or left_s >= needed_s:
        return
    lead = SAVES_OF_WARNING * plan.checkpoint_mib.value / WRITE_MIB_PER_S
    takes = f"{what_is_left(facts)} takes {needed_s / 3600:.1f}"
    ends = f"job {scheduler.job_id} ends in {left_s / 3600:.1f} hours and {takes}"
    if scheduler.signal_lead_s < lead:
        message = f"{ends}; its signal leads by {scheduler.signal_lead_s:g} s, and a save needs {lead:.0f} s"
        severity = Severity.WARN if scheduler.end_is_known else None
        yield Violation("guard.walltime_limit_hours", message, f"sbatch --signal=B:TERM@{lead:.0f}", severity)
    else:
        yield Violation("guard.walltime_limit_hours", ends, "requeue it with --resume auto", Severity.WARN)
