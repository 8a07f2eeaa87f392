"""Facts of a rehearsal: a few dozen steps of the run itself, measured, killed, resumed, and left to stall.

A part is None where the rehearsal did not come to it. Times in seconds, sizes in MiB, losses in nats per
target.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCaseFacts:
    """The microbatch that takes most, as it was run before the first step and after the last."""

    num_tokens: int
    longest: int
    num_segments: int
    num_targets: int
    num_eval_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionFacts:
    """Parameters, and FLOPs of matrix products, by the precision of what goes in."""

    parameters: dict[str, int]
    product_flops: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchFacts:
    """The attention kernel that was resolved, and the one that each block ran.

    Attributes:
        ran: by the number of the block; empty for one that did not say. Blocks of one graph say it once.
        has_mask_with_packing: a packed microbatch came with a mask; None for padded rows.
    """

    resolved: str
    ran: tuple[str, ...]
    has_mask_with_packing: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFacts:
    """The pace behind the warm-up.

    Attributes:
        mfu: None off the table of cards.
        data_wait_share: of the step's time.
        line_step_times_s: of each line of metrics, in order.
        recompiles: behind the warm-up; None where nothing is compiled.
    """

    step_time_s: float
    tokens_per_second: float
    mfu: float | None
    data_wait_share: float
    line_step_times_s: tuple[float, ...]
    recompiles: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Memory of the fullest device. `context_mib` is what it holds beside the allocator's."""

    total_mib: int
    context_mib: int
    peak_allocated_mib: int
    peak_reserved_mib: int
    alloc_retries: int
    growth_mib_per_step: float

    @property
    def peak_mib(self) -> int:
        """What the driver saw taken at the peak."""
        return self.peak_reserved_mib + self.context_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class OverfitFacts:
    """One microbatch, over and over at the peak rate: its loss at the first step and at the last.

    None where that is no finite number.
    """

    steps: int
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningFacts:
    """What a new model knows, and whether it learns. `initial_loss` is None where it is no finite number."""

    vocab_size: int
    initial_loss: float | None
    overfit: OverfitFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationFacts:
    """The gradient of two unequal microbatches in one step, against each alone, weighted by its targets.

    `relative_difference` is None where there was no gradient, or one that is not finite.
    """

    num_targets: tuple[int, int]
    relative_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFacts:
    """The rate that a step was done at, and where the schedule stood behind it."""

    step: int
    learning_rate: float
    schedule_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFacts:
    """Whether the run evaluated before it trained. `loss` is None without a target."""

    is_configured: bool
    was_announced: bool
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapFacts:
    """Share of the evaluation's tokens whose document stands in the training text, word for word."""

    eval_documents: int
    train_documents: int
    shared_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTrialFacts:
    """A run that was killed and went on.

    Attributes:
        expected_start: step of its newest checkpoint; `start` is where it went on.
        num_tensors: weights and optimizer state of all ranks; `altered_tensors` came back otherwise.
        compared_steps: steps that were done in both.
        differing: what those steps do not share to the last bit: data, learning rate, generators, position.
        first_loss_difference: relative, of the first step: the same weights saw the same batch.
        largest_loss_difference: relative, over all of them. Both are None where a loss is not finite.
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
class TelemetryFacts:
    """The last heartbeat, and what the process said of its memory beside what others say of it.

    Attributes:
        fields: names and JSON types of the heartbeat.
        reading: its numbers of memory; None where there is no GPU.
        driver_mib: what the driver saw the rehearsal take on that device; None where it was not told, or not
            told apart from what others take, which `driver_reason` says.
        system_rss_mib: what the operating system saw at the same moment.
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
    """A child that stood still on purpose.

    `detected_s` is the silence after which it was given up; None where it never was.
    """

    budget_s: float
    detected_s: float | None
    survivors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalFacts:
    """What was seen of a rehearsal.

    Attributes:
        out_of_memory: where the device had no room, in its own words; empty where it had.
        diverged: where the run stopped itself for its loss, and why; empty where it did not.
        baseline_tokens_per_second: of an earlier rehearsal of the same config on this device.
        save_s: how long its first checkpoint took, beside training, until it was read back.
        keys_read: keys that the program read; keys_replaced are set otherwise in a rehearsal.
    """

    device: str
    device_name: str
    num_ranks: int
    duration_s: float
    out_of_memory: str = ""
    diverged: str = ""
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
    save_s: float | None = None
    resumes: tuple[ResumeTrialFacts, ...] = ()
    telemetry: TelemetryFacts | None = None
    watchdog: WatchdogFacts | None = None
    keys_read: tuple[str, ...] = ()
    keys_replaced: tuple[str, ...] = ()
