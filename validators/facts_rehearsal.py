"""Facts of a rehearsal: a few dozen steps of the run, with resume trials and a hang detection test.

A part is None if the rehearsal ended before it. Times are in seconds, sizes in MiB, losses in nats per
target.
"""

from __future__ import annotations

from dataclasses import dataclass

from neobert.runfiles.answer_kinds import AnswerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCaseFacts:
    """Memory test with the largest microbatch, before the first step and after the last."""

    num_tokens: int
    longest: int
    num_segments: int
    num_targets: int
    num_eval_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionFacts:
    """Parameter count and matrix-product FLOPs, by input precision."""

    parameters: dict[str, int]
    product_flops: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchFacts:
    """Resolved attention kernel, and the kernel that each block ran.

    Attributes:
        ran: kernel of each block; empty for a block that did not report. Blocks of one graph report once.
        has_mask_with_packing: whether a packed microbatch came with a mask; None for padded rows.
    """

    resolved: str
    ran: tuple[str, ...]
    has_mask_with_packing: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFacts:
    """Throughput after the warm-up.

    Attributes:
        mfu: share of the peak FLOP/s; None for a device that is not in the table.
        data_wait_share: share of the step time spent on waiting for data.
        host_bound_share: share of steps in which the device waited for kernel launches; None on a CPU
            and for facts of earlier versions.
        line_step_times_s: step time of each line of metrics, in order.
        recompiles: number of recompilations after the warm-up; None if nothing is compiled.
    """

    step_time_s: float
    tokens_per_second: float
    mfu: float | None
    data_wait_share: float
    line_step_times_s: tuple[float, ...]
    recompiles: int | None
    host_bound_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Memory of the device with the highest use. `context_mib` is memory outside the allocator."""

    total_mib: int
    context_mib: int
    peak_allocated_mib: int
    peak_reserved_mib: int
    alloc_retries: int
    growth_mib_per_step: float

    @property
    def peak_mib(self) -> int:
        """Peak memory that the driver sees: reserved by the allocator, and outside it."""
        return self.peak_reserved_mib + self.context_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class OverfitFacts:
    """First and last loss of repeated training steps on one microbatch at the peak learning rate.

    A loss is None if it is not finite.
    """

    steps: int
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningFacts:
    """Initial loss of a new model (None if it is not finite), and its overfitting trial.

    `vocab_size` is the number of classes of a target, 1 for a score.
    """

    vocab_size: int
    initial_loss: float | None
    overfit: OverfitFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationFacts:
    """Gradient of two unequal microbatches in one step, compared with the weighted mean of each alone.

    `relative_difference` is None if there was no finite gradient.
    """

    num_targets: tuple[int, int]
    relative_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFacts:
    """Learning rate of a step, and the scheduler's step count after that step."""

    step: int
    learning_rate: float
    schedule_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFacts:
    """First evaluation, before step 1.

    Attributes:
        loss: mean loss; None if there were no targets.
        microbatch_s: longest duration of a microbatch; None for facts of earlier versions.
    """

    is_configured: bool
    was_announced: bool
    loss: float | None
    microbatch_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapFacts:
    """Share of the evaluation's tokens in documents that also occur verbatim in the training text."""

    eval_documents: int
    train_documents: int
    shared_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTrialFacts:
    """A run that was killed and resumed.

    Attributes:
        expected_start: step of the newest checkpoint; `start` is the step that it resumed from.
        num_tensors: weights and optimizer state of all ranks; `altered_tensors` changed on loading.
        compared_steps: number of steps that both runs did.
        differing: names of values that are not bit-exact in those steps: data, learning rate, generators,
            position.
        first_loss_difference: relative, at the first step, with the same weights and the same batch.
        largest_loss_difference: relative, over all compared steps. Both are None if a loss is not finite.
    """

    expected_start: int
    start: int
    num_tensors: int
    altered_tensors: tuple[str, ...]
    compared_steps: int
    differing: tuple[str, ...]
    first_loss_difference: float | None
    largest_loss_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """Result of one known-answer test of the trained task.

    Attributes:
        subject: name of the changed inputs or the planted label.
        kind: defines the meaning of `value`; see `AnswerKind`.
        value: None if it is not finite.
    """

    subject: str
    kind: AnswerKind
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryFacts:
    """Last heartbeat, with the memory of its process as reported by the driver and the operating system.

    Attributes:
        fields: names and JSON types of the heartbeat's fields; memory figures are None without a GPU.
        driver_mib: device memory of the rehearsal, as reported by the driver; None if it was not reported or
            could not be separated from other processes, for the reason in `driver_reason`.
        system_rss_mib: resident memory at the same moment, as reported by the operating system.
    """

    fields: dict[str, str]
    gpu_mem_alloc_mib: float | None
    gpu_mem_alloc_gib: float | None
    gpu_mem_reserved_mib: float | None
    gpu_mem_reserved_gib: float | None
    gpu_mem_total_mib: float | None
    host_rss_mib: float
    driver_mib: int | None
    system_rss_mib: float
    driver_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogFacts:
    """Hang detection test with a child process that hangs deliberately.

    `detected_s` is the time without progress until detection; None if it was not detected.
    """

    budget_s: float
    detected_s: float | None
    survivors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LowPrecisionFacts:
    """Steps of the run and of the same run in bf16 with `kernel_backend: auto`, in turns on one device.

    Attributes:
        recipe_step_s, bf16_step_s: median step times.
        recipe_kernels, bf16_kernels: kernels of the blocks and of attention that ran.
        recipe_loss, bf16_loss: mean losses of steps 9 to 16; None if a loss is not finite.
    """

    recipe_step_s: float
    bf16_step_s: float
    recipe_loss: float | None
    bf16_loss: float | None
    recipe_kernels: str
    bf16_kernels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalFacts:
    """Measurements of a rehearsal.

    Attributes:
        out_of_memory: the out-of-memory error; empty if there was none.
        diverged: error with which the run stopped itself because of its loss; empty if it did not.
        untrained: error with the names of trained weights that got no gradient; empty if all got one.
        baseline_tokens_per_second: throughput of an earlier rehearsal of the same config on this device.
        answers: results of known-answer tests at the end of the uninterrupted run.
        save_s: duration of the first checkpoint, written during training, until it was read back.
        planned_steps: steps of the run for which the rehearsal built its schedule; None for facts of earlier
            versions.
        keys_read: keys that the program read; `keys_replaced` have other values in a rehearsal.
    """

    device: str
    device_name: str
    num_ranks: int
    duration_s: float
    out_of_memory: str = ""
    diverged: str = ""
    untrained: str = ""
    worst_case: WorstCaseFacts | None = None
    precision: PrecisionFacts | None = None
    attention: DispatchFacts | None = None
    speed: SpeedFacts | None = None
    baseline_tokens_per_second: float | None = None
    memory: MemoryFacts | None = None
    learning: LearningFacts | None = None
    accumulation: AccumulationFacts | None = None
    schedule: tuple[ScheduleFacts, ...] = ()
    evaluation: EvaluationFacts | None = None
    overlap: OverlapFacts | None = None
    answers: tuple[AnswerFacts, ...] = ()
    save_s: float | None = None
    resumes: tuple[ResumeTrialFacts, ...] = ()
    telemetry: TelemetryFacts | None = None
    watchdog: WatchdogFacts | None = None
    low_precision: LowPrecisionFacts | None = None
    planned_steps: int | None = None
    keys_read: tuple[str, ...] = ()
    keys_replaced: tuple[str, ...] = ()
