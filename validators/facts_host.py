"""Facts about software, host, storage, scheduler and data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFacts:
    """Interpreter and distributions.

    Attributes:
        pinned: tested version of each distribution.
        shadowed: file that shadows a module of this project, by module.
        torch_cuda: CUDA version of the torch build; empty for a CPU-only build.
    """

    python: str
    packages: dict[str, str]
    pinned: dict[str, str]
    shadowed: dict[str, str]
    torch_cuda: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitFacts:
    """State of the run's working tree."""

    is_repository: bool
    sha: str
    is_dirty: bool
    diff_sha256: str
    diff_saved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateFileFacts:
    """Config file written by `accelerate config`; `is_named` if ACCELERATE_CONFIG_FILE names it.

    `error` is the reason why the file could not be read; the other values are then empty.
    """

    path: str
    is_named: bool
    distributed_type: str = ""
    fsdp_version: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Memory, CPUs, limits and clock of this host.

    Attributes:
        clock_behind_s: seconds by which the clock is earlier than the newest file of this installation.
        is_clock_synchronized: as reported by the kernel; None if it does not report it.
        accelerate_file: config file of accelerate that users may expect to apply.
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
    """File system of output_dir, tested with a write, a sync and a rename.

    Attributes:
        reservation: result of the attempt to reserve the size of one checkpoint, which a quota can reject
            despite free space. Some file systems cannot reserve space; file systems in memory are not tested.
        temporary_folder: folder such as /tmp or $TMPDIR that contains output_dir; empty if none does.
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
    temporary_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """Existing content of output_dir.

    Attributes:
        num_set_aside: number of checkpoints that were moved aside under other names.
        foreign_checkpoint: newest folder `model_checkpoints/<step>` of an earlier trainer; empty if none.
        obstacle: why no file can be created in output_dir or, if it does not exist, in its closest parent;
            empty if one can be.
        runs: names of run directories in output_dir, such as the points of a sweep.
    """

    path: str
    exists: bool
    is_directory: bool
    is_empty: bool
    config_digest: str
    checkpoint_steps: tuple[int, ...]
    num_set_aside: int = 0
    foreign_checkpoint: str = ""
    obstacle: str = ""
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFacts:
    """Checkpoint that the run would resume or continue from.

    Attributes:
        structural_differences: model and data keys that differ, with both values.
        passed_by: newer checkpoints that failed verification, each with its step and the reason.
        alternative: newest verified checkpoint in the selected folder or in the run's own, if `selector` does
            not resolve to a checkpoint; else empty.
        learning_rate: learning rate of the next step under the schedule of the checkpoint; None if unknown.
        is_elsewhere: whether `target` is outside `trainer.output_dir`.
        is_continued: whether `target` is the checkpoint of another run that this one continues on other text;
            `structural_differences` then compares model and optimizer.
        stable_steps: first and last step of the plateau of the checkpoint's schedule; None if not known.
        tokenizer_digest: digest of the tokenizer that the checkpoint was trained with; empty if not known.
            `data_fingerprint`: digest of its text.
        tokenizer_differences: keys, with both values, by which a continued run would train another tokenizer;
            empty if it names one.
        numeric_differences: keys, with both values, that change losses or updates, without keys of the
            schedule.
        source_reason: why the text or the tokenizer of the run that this one continues on other text cannot
            be read; empty if they can.
        muon_peak: peak learning rate of that run for matrices that Muon updates; None if not known.
        schedule_differences: keys, with both values, that determine the learning rate of a step; None if not
            known.
        plugin_differences: plug-ins and their files that differ, such as `helpers.py was edited`.
        way_out: hint that fixes `reason` if the checkpoint itself is intact; else empty.
        lacks_line: whether a stop interrupted the evaluation of `step`, whose line of metrics is missing.
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
    is_continued: bool = False
    stable_steps: tuple[int, int] | None = None
    tokenizer_digest: str = ""
    data_fingerprint: str = ""
    tokenizer_differences: tuple[str, ...] = ()
    numeric_differences: tuple[str, ...] = ()
    lacks_line: bool = False
    schedule_differences: tuple[str, ...] | None = None
    source_reason: str = ""
    muon_peak: float | None = None
    plugin_differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerFacts:
    """Availability of the experiment trackers.

    Attributes:
        is_installed: whether wandb is installed; `is_offline` and `has_credentials` are about wandb too.
        is_reachable: whether wandb's server accepts connections; None if not tested, or behind a proxy.
        packages: for each tracker, whether its package is installed; empty in older recordings.
        unwritable: for each tracker that cannot write locally, its folder.
    """

    is_installed: bool
    is_offline: bool
    has_credentials: bool
    is_reachable: bool | None = None
    packages: dict[str, bool] = field(default_factory=dict)
    unwritable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFacts:
    """Batch scheduler of this process.

    Attributes:
        signal_lead_s: seconds between the warning signal and the kill; 0 if no signal is sent.
        end_is_known: whether the environment states the end of the job, so that the trainer can stop in time.
        preempt_lead_s: seconds between the warning and the end of a preempted job; None if jobs of this
            partition are not preempted, or if it is unknown.
        is_step: whether srun started the launcher.
    """

    name: str
    job_id: str
    walltime_left_s: float | None
    signal_lead_s: float
    end_is_known: bool = False
    preempt_lead_s: float | None = None
    is_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Availability of data, tokenizer and initial weights.

    Attributes:
        weights: path or name of the initial weights; empty if there are none.
        weights_reason: why a run cannot start from `weights`; empty if it can, or if there are none.
        weights_key: first key of the section `model` that contradicts the weights; empty if none does.
        weights_hint: edits that fix `weights_reason`, or the fix of `weights_damage`.
        weights_damage: why the checkpoint of the weights fails verification; empty if it does not.
        weights_tokens: number of tokens in the weights' tokenizer.json; 0 if a tokenizer file is missing.
        renumbered_tokens: how many of them have another id, or none, in the run's tokenizer.
        tokenizer_differences: keys by which the run would train another tokenizer than the weights' run did.
        special_tokens: ids in the weights' config.json and in the tokenizer, by role, where they differ.
        weights_positions: longest sequence that this config.json states; 0 if it states none.
        weights_rope_theta: model.rope_theta for rows of this run; 0 if the model has no such key.
        random_head: parts of the head that stay random, although the weights have a head of the run's task.
        undeclared: keys of the task with the values that the weights declare, where the run's differ.
        cache_reason: why prepared data cannot be cached; empty if it can.
        source_reason: why the text of trainer.eval_source_path cannot be read; empty if it can.
        unjoined_parts: number of unjoined parts in the cache folder, complete or not.
        missing_parts: incomplete ones of these parts.
        part_faults: why these parts do not belong together; empty if they do.
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
    weights_key: str = ""
    weights_hint: str = ""
    weights_damage: str = ""
    weights_tokens: int = 0
    renumbered_tokens: int = 0
    tokenizer_differences: tuple[str, ...] = ()
    special_tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    weights_positions: int = 0
    weights_rope_theta: float = 0.0
    random_head: tuple[str, ...] = ()
    undeclared: dict[str, str] = field(default_factory=dict)
    cache_reason: str = ""
    source_reason: str = ""
    unjoined_parts: int = 0
    missing_parts: tuple[str, ...] = ()
    part_faults: tuple[str, ...] = ()
