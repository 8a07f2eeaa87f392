"""Training: optimizer, learning rate and loop."""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from neobert.config.decays import DECAY_NAMES
from neobert.config.optimizers import OPTIMIZER_NAMES, SUMMARIES
from neobert.schema_fields import (
    Beta,
    ConfigSection,
    Fraction,
    NonEmpty,
    NonNegativeFloat,
    NonNegativeInt,
    Percent,
    PositiveFloat,
    PositiveInt,
    ge,
    key,
    le,
    pattern,
)
from neobert.tasks.table import TASKS

PluggedMetric = Annotated[str, pattern("^eval/[a-z][a-z0-9_]*$")]

if TYPE_CHECKING:
    OptimizerName = str
    DecayName = str
    MetricName = str
else:  # type checkers reject a computed Literal
    MetricName = Literal[tuple({metric.name: None for task in TASKS.values() for metric in task.metrics})]
    OptimizerName = Literal[OPTIMIZER_NAMES]
    DecayName = Literal[DECAY_NAMES]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OptimizerConfig(ConfigSection):
    """The optimizer. Weight decay is not applied to norms, biases and embeddings.

    With muon and muonclip, Muon updates the matrices of the blocks; AdamW updates the decoder, embeddings,
    norms and biases, in the same optimizer and on the same schedule.
    """

    name: OptimizerName = key("adamw", f"Update rule; {SUMMARIES}.", affects="model")
    lr: PositiveFloat = key(6e-4, "Peak learning rate.")
    betas: tuple[Beta, Beta] = key(
        (0.9, 0.999),
        "Decay rates of the first and second moment (AdamW), or of Lion's direction and momentum.",
    )
    eps: PositiveFloat = key(1e-8, "Term added to the denominator for numerical stability (AdamW).")
    weight_decay: NonNegativeFloat = key(0.01, "Decoupled weight decay of weight matrices.")
    muon_lr: PositiveFloat | None = key(
        None, "Peak learning rate of the matrices that Muon updates; null: lr."
    )
    muon_momentum: Beta = key(0.95, "Momentum of Muon.")
    muon_nesterov: bool = key(True, "Use Nesterov momentum in Muon.")
    muon_ns_steps: Annotated[int, ge(1), le(20)] = key(
        5, "Newton-Schulz iterations of the orthogonalization."
    )
    muon_adjust_lr_fn: Literal["original", "match_rms_adamw"] = key(
        "match_rms_adamw",
        "Scale of an update by the shape of its matrix: match_rms_adamw is 0.2 sqrt(max(rows, columns)), for "
        "learning rates of AdamW; original is sqrt(max(1, rows / columns)), for learning rates near 0.02.",
    )
    muon_split: Literal["projections", "heads"] = key(
        "projections",
        "Matrices that Muon orthogonalizes separately: Q, K and V of all heads together, or of each head.",
    )
    qk_clip_threshold: PositiveFloat = key(50.0, "MuonClip: maximum attention logit per head.")
    qk_clip_alpha: Fraction = key(0.5, "MuonClip: fraction of the correction that is applied to the queries.")
    qk_clip_interval: PositiveInt = key(10, "MuonClip: steps between measurements of the logits.")
    qk_clip_chunk_size: PositiveInt = key(1024, "MuonClip: queries per chunk of the measurement.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SchedulerConfig(ConfigSection):
    """Learning rate schedule: linear warm-up, plateau, decay, minimum (WSD, warm-up-stable-decay)."""

    name: DecayName = key(
        "cosine",
        "Shape of the decay. After a fraction x of the decay, the rate above the minimum is scaled by "
        "sqrt(1 - x) for sqrt and by 1 - sqrt(x) for 1-sqrt (arXiv:2405.18392).",
    )
    warmup_steps: NonNegativeInt = key(
        0, "Steps of linear warm-up, from 1e-4 of the peak.", replaces=("warmup_percent",)
    )
    warmup_percent: Percent | None = key(
        None,
        "Warm-up in percent of the steps; takes precedence over warmup_steps.",
        replaces=("warmup_steps",),
    )
    decay_steps: PositiveInt | None = key(
        None,
        "Number of decay steps at the end of the schedule (not the step at which the decay ends); null: all "
        "steps after the warm-up.",
        replaces=("decay_percent",),
    )
    decay_percent: Percent | None = key(
        None,
        "Decay in percent of the steps; takes precedence over decay_steps.",
        replaces=("decay_steps",),
    )
    total_steps: PositiveInt | None = key(
        None, "Step at which the minimum is reached; null: trainer.max_steps."
    )
    final_lr_ratio: Fraction = key(0.1, "Minimum learning rate as a fraction of the peak.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainerConfig(ConfigSection):
    """Training loop: steps, batch size, precision, checkpoints, evaluation and logging."""

    output_dir: NonEmpty = key("runs/default", "Run directory.", is_path=True, affects="reporting")
    overwrite_output_dir: bool = key(
        False, "Move the files of another run in output_dir aside and start there.", affects="start"
    )
    resume_from_checkpoint: str = key(
        "never",
        "auto: newest checkpoint of output_dir, or a fresh start if there is none; never; latest or best: "
        "the checkpoint with this name in output_dir; or a path.",
        is_path=True,
        words=("auto", "never", "latest", "best"),
        affects="start",
    )
    continue_from: str | None = key(
        None,
        "Run directory or checkpoint of a run that this one continues on other text: weights, optimizer "
        "state and step are restored, and the new text is read from its start; null: none.",
        is_path=True,
        affects="model",
    )
    eval_source_text: bool = key(
        True,
        "With continue_from: also evaluate on the evaluation text of the continued run, as eval/source_loss.",
        affects="cadence",
    )
    eval_source_path: str | None = key(
        None,
        "Text that the initial weights were trained on, for an additional evaluation, eval/source_loss: a "
        "file, folder or pattern, or a run directory or checkpoint, whose evaluation text is used. With "
        "continue_from, it replaces the evaluation text of the continued run.",
        is_path=True,
        affects="cadence",
    )
    max_steps: PositiveInt = key(1000, "Number of optimizer steps.", affects="numerics")
    max_epochs: PositiveFloat | None = key(
        None,
        "Number of epochs after which the run ends, unless max_steps is reached first; null: no limit.",
        affects="numerics",
    )
    per_device_train_batch_size: PositiveInt = key(
        16,
        "Rows of max_length per microbatch and device; packed, a row holds several documents.",
        affects="data",
    )
    per_device_eval_batch_size: PositiveInt = key(
        16, "Rows per evaluation microbatch and device.", affects="machine"
    )
    gradient_accumulation_steps: PositiveInt = key(1, "Microbatches per optimizer step.", affects="machine")
    keep_step: bool = key(
        False,
        "Keep the number of microbatches per step over all processes if arguments change the "
        "number of nodes or processes: gradient_accumulation_steps is then derived.",
        affects="machine",
    )
    batch_size_warmup_steps: NonNegativeInt = key(
        0,
        "Batch-size warm-up: steps over which the microbatches per optimizer step double from 1 to "
        "gradient_accumulation_steps. The learning rate depends on the step alone.",
        affects="data",
    )
    sequence_length_warmup_steps: NonNegativeInt = key(
        0,
        "Sequence-length warm-up: first steps in which packed documents are cut into pieces of "
        "sequence_length_warmup_length tokens, which do not attend to each other.",
        replaces=("sequence_length_warmup_percent",),
        affects="data",
    )
    sequence_length_warmup_percent: Percent | None = key(
        None,
        "Sequence-length warm-up in percent of the steps; takes precedence over "
        "sequence_length_warmup_steps.",
        replaces=("sequence_length_warmup_steps",),
        affects="data",
    )
    sequence_length_warmup_length: PositiveInt = key(
        64,
        "Maximum length of pieces of documents, in tokens, during the sequence-length warm-up.",
        affects="data",
    )
    global_batch_size: PositiveInt | None = key(
        None,
        "Expected rows per step over all devices; only checked against the product of the other keys.",
        affects="limits",
    )
    gradient_clipping: PositiveFloat | None = key(
        1.0, "Maximum global gradient norm; null: no clipping.", affects="numerics"
    )
    gradient_checkpointing: bool = key(
        False, "Recompute activations in the backward pass.", affects="machine"
    )
    gradient_checkpointing_every_n: PositiveInt = key(
        1, "Recompute only every n-th block.", affects="machine"
    )
    mixed_precision: Literal["bf16", "fp32", "no"] = key(
        "bf16", "Compute precision; no and fp32 mean fp32.", affects="numerics"
    )
    tf32: bool = key(True, "Allow TF32 for fp32 matrix products on CUDA.", affects="numerics")
    torch_compile: bool = key(
        False, "Compile the model with torch.compile (static shapes, full graph).", affects="machine"
    )
    torch_compile_backend: Literal["inductor", "aot_eager", "eager"] = key(
        "inductor", "Backend of torch.compile.", affects="machine"
    )
    cuda_graphs: bool = key(
        False,
        "Replay the step as CUDA graphs, so that a small model does not wait for the host to launch its "
        "kernels (packed rows, one GPU). Works with and without torch_compile.",
        affects="machine",
    )
    masked_logits_only_loss: bool = key(
        True,
        "Compute logits of masked positions only; false: of all positions (ablation).",
        affects="machine",
    )
    z_loss: NonNegativeFloat = key(
        0.0,
        "Weight of the squared logsumexp of a target's logits, added to its loss in training (z-loss, "
        "arXiv:2204.02311: 1e-4), not in evaluations.",
        affects="numerics",
    )
    save_steps: NonNegativeInt = key(
        1000,
        "Steps between checkpoints; 0: only the checkpoint at the end, which is always saved.",
        affects="cadence",
    )
    save_total_limit: NonNegativeInt = key(
        3, "Number of newest checkpoints to keep, at least two; 0: all.", affects="cadence"
    )
    save_keep_every: NonNegativeInt = key(
        0, "Also keep checkpoints at multiples of this step; 0: disabled.", affects="cadence"
    )
    async_save: bool = key(
        True, "Write checkpoints in the background; false: training waits for the write.", affects="machine"
    )
    early_stopping_patience: PositiveInt | None = key(
        None,
        "Evaluations without improvement of metric_for_best_model after which the run ends; null: disabled.",
        affects="numerics",
    )
    metric_for_best_model: MetricName | PluggedMetric | None = key(
        None,
        "Metric that selects the best checkpoint, linked as checkpoints/best; null: no best checkpoint.",
        affects="cadence",
    )
    greater_is_better: bool | None = key(
        None,
        "Maximize metric_for_best_model; null: the direction of the metric.",
        affects="cadence",
    )
    eval_steps: NonNegativeInt = key(
        1000,
        "Steps between evaluations; 0: evaluate only at the end. If it is unset, with "
        "metric_for_best_model and a stated max_steps that allows at most two evaluations: a quarter of "
        "max_steps, also for save_steps.",
        affects="cadence",
    )
    eval_max_batches: PositiveInt | None = key(
        None, "Maximum number of evaluation microbatches; null: the whole split.", affects="machine"
    )
    logging_steps: PositiveInt = key(
        25, "Steps between lines of metrics and heartbeats.", affects="reporting"
    )
    timing_breakdown: bool = key(
        False, "Add the time of each part of a step to the metrics.", affects="machine"
    )
    profile_steps: tuple[PositiveInt, PositiveInt] | None = key(
        None,
        "First and last step to record with torch's profiler, as one Chrome trace per rank in profile/ of "
        "the run directory; null: disabled.",
        affects="cadence",
    )
    memory_snapshot_step: PositiveInt | None = key(
        None,
        "Step at which CUDA allocations are recorded, as one snapshot per rank in profile/ of the run "
        "directory (for pytorch.org/memory_viz); null: disabled.",
        affects="cadence",
    )
