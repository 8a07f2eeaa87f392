"""Facts: what is true of this machine, repository and data. Frozen; JSON in and out, to be replayed.

A group is None where its probe could not tell; `probes` says why. Rules read facts and never probe.
Sizes are in MiB, times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from validators.facts_gpu import GpuFacts, GpuHealthFacts, GpuLoadFacts, GpuLogFacts
from validators.facts_num import DeviceFacts, NumericsFacts
from validators.facts_rehearsal import RehearsalFacts
from validators.facts_run import DistributedFacts, ImportFacts, InspectionFacts, PreparedFacts

SCHEMA_VERSION = 1
FOREIGN_TREE = "model_checkpoints"
"""Where earlier NeoBERT trainers kept their checkpoints, below the output directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """How one probe ended."""

    name: str
    status: Literal["ok", "unsupported", "incomplete", "timeout"]
    reason: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFacts:
    """Interpreter and distributions. `shadowed` maps a module of this project to the file that hides it.

    `torch_cuda`: the CUDA version that torch was built with; empty for a build without CUDA.
    """

    python: str
    packages: dict[str, str]
    pinned: dict[str, str]
    shadowed: dict[str, str]
    torch_cuda: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitFacts:
    """State of the working tree that the run starts from."""

    is_repository: bool
    sha: str
    is_dirty: bool
    diff_sha256: str
    diff_saved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateFileFacts:
    """A config file that `accelerate config` wrote. `is_named`: by ACCELERATE_CONFIG_FILE.

    `error` says why the file could not be read; the other values are empty then.
    """

    path: str
    is_named: bool
    distributed_type: str = ""
    fsdp_version: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Memory, processors, limits and clock of this host.

    Attributes:
        clock_behind_s: seconds by which the clock is earlier than the newest file of this installation.
        is_clock_synchronized: what the kernel says of its clock; None where it does not say.
        accelerate_file: a config file of accelerate that a person may expect to count.
    """

    hostname: str
    cpu_count: int
    ram_total_mib: int
    ram_available_mib: int
    shm_free_mib: int
    open_files_limit: int
    environment: dict[str, str]
    clock_behind_s: float = 0.0
    is_clock_synchronized: bool | None = None
    accelerate_file: AccelerateFileFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """The file system under output_dir, tried with a real write, sync and rename.

    `reservation` is the attempt to reserve the bytes of one checkpoint: a quota refuses what the free space
    promises. Some file systems cannot reserve, and in memory it is not tried.
    """

    path: str
    filesystem: str
    free_mib: int
    free_inodes: int
    is_writable: bool
    rename_works: bool
    fsync_works: bool
    error: str = ""
    reservation: Literal["done", "refused", "unsupported", "not tried"] = "not tried"
    reservation_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """What output_dir holds already. Of its checkpoints some may have been set aside, under other names.

    `foreign_checkpoint`: the newest folder of an earlier trainer's `model_checkpoints/<step>`, or empty.
    """

    path: str
    exists: bool
    is_directory: bool
    is_empty: bool
    config_digest: str
    checkpoint_steps: tuple[int, ...]
    num_set_aside: int = 0
    foreign_checkpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFacts:
    """The checkpoint that the run would resume from.

    Attributes:
        structural_differences: which model and data keys differ, with both values.
        passed_by: newer checkpoints that do not verify, each with its step and why.
        alternative: where `selector` leads to none, the newest that verifies, in the folder that it names or
            of the run's own; or empty.
        learning_rate: of the next step, under the schedule that the checkpoint was saved with; None for none.
        is_elsewhere: whether `target` belongs to another folder than `trainer.output_dir`.
        way_out: what to do about `reason`, where the checkpoint itself is whole; or empty.
    """

    selector: str
    target: str
    exists: bool
    is_verified: bool
    reason: str
    step: int
    structural_differences: tuple[str, ...]
    passed_by: tuple[str, ...] = ()
    alternative: str = ""
    learning_rate: float | None = None
    is_elsewhere: bool = False
    way_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerFacts:
    """Which trackers can be used.

    Attributes:
        is_installed: whether wandb is; `is_offline` and `has_credentials` are about wandb as well.
        is_reachable: whether wandb's server takes connections; None: not checked, or behind a proxy.
        packages: for each tracker, whether its package is installed; empty in older recordings.
        unwritable: folder of each tracker that cannot write there.
    """

    is_installed: bool
    is_offline: bool
    has_credentials: bool
    is_reachable: bool | None = None
    packages: dict[str, bool] = field(default_factory=dict)
    unwritable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFacts:
    """The batch scheduler around this process. Zero signal lead: none is sent before the kill.

    `end_is_known`: it stands in the environment, where the launcher reads it for the trainer too.
    """

    name: str
    job_id: str
    walltime_left_s: float | None
    signal_lead_s: float
    end_is_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Whether the text, the tokenizer and the weights to start from are there.

    `weights_reason` says why a run cannot start from `weights`; empty where it can, or starts from none.
    `cache_reason` says why there is no folder to keep prepared text in.
    """

    source: str
    exists: bool
    is_readable: bool
    num_files: int
    size_bytes: int
    tokenizer: str
    tokenizer_exists: bool
    reason: str = ""
    weights: str = ""
    weights_reason: str = ""
    cache_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFor:
    """The config that facts were measured for. `keys`: those that shape a measurement, values as JSON."""

    config_digest: str
    keys: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the probes found. An empty instance is what a static check has."""

    schema_version: int = SCHEMA_VERSION
    recorded_utc: str = ""
    measured_for: MeasuredFor | None = None
    probes: tuple[ProbeRecord, ...] = ()
    software: SoftwareFacts | None = None
    git: GitFacts | None = None
    host: HostFacts | None = None
    disk: DiskFacts | None = None
    output: OutputFacts | None = None
    resume: ResumeFacts | None = None
    tracker: TrackerFacts | None = None
    scheduler: SchedulerFacts | None = None
    data: DataFacts | None = None
    gpus: tuple[GpuFacts, ...] | None = None
    gpu_health: tuple[GpuHealthFacts, ...] | None = None
    gpu_log: GpuLogFacts | None = None
    gpu_load: tuple[GpuLoadFacts, ...] | None = None
    imports: ImportFacts | None = None
    distributed: DistributedFacts | None = None
    inspection: InspectionFacts | None = None
    numerics: NumericsFacts | None = None
    devices: tuple[DeviceFacts, ...] | None = None
    rehearsal: RehearsalFacts | None = None

    @property
    def prepared(self) -> PreparedFacts | None:
        """The prepared text; None where nobody looked at it, or where it could not be prepared."""
        return None if self.inspection is None else self.inspection.prepared

    def was_probed(self, group: str) -> bool:
        """Whether somebody tried to find out, whatever came of it."""
        return any(probe.name == group for probe in self.probes)

    def reason_missing(self, group: str) -> str:
        """Why the group is None, in the probe's own words."""
        for probe in self.probes:
            if probe.name == group:
                return f"{probe.status}: {probe.reason}"
        return "was not probed"


NO_FACTS = Facts()
