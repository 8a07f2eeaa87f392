"""Training: optimizer, learning rate and loop."""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from neobert.config.decays import DECAY_NAMES
from neobert.config.optimizers import OPTIMIZER_NAMES, SUMMARIES
from neobert.config.schema.fields import (
    STRICT,
    Beta,
    Fraction,
    NonEmpty,
    NonNegativeFloat,
    NonNegativeInt,
    Percent,
    PositiveFloat,
    PositiveInt,
    key,
)

if TYPE_CHECKING:
    OptimizerName = str
    DecayName = str
else:  # type checkers reject a computed Literal
    OptimizerName = Literal[OPTIMIZER_NAMES]
    DecayName = Literal[DECAY_NAMES]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer. Norms, biases and embeddings never decay.

    Under muon and muonclip the matrices of the blocks are Muon's; the decoder, embeddings, norms and biases
    stay AdamW's, in the same optimizer and on the same schedule.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: OptimizerName = key("adamw", f"Update rule; {SUMMARIES}.", affects="model")
    lr: PositiveFloat = key(6e-4, "Peak learning rate.")
    betas: tuple[Beta, Beta] = key(
        (0.9, 0.999), "Decay of the first and second moment (AdamW); of Lion's direction and momentum."
    )
    eps: PositiveFloat = key(1e-8, "Added to the root of the second moment (AdamW).")
    weight_decay: NonNegativeFloat = key(0.01, "Decoupled weight decay of the matrices.")
    muon_lr: PositiveFloat | None = key(None, "Peak learning rate of Muon's matrices; null: lr.")
    muon_momentum: Beta = key(0.95, "Decay of Muon's momentum.")
    muon_nesterov: bool = key(True, "Look ahead along the momentum, as Nesterov does.")
    muon_ns_steps: Annotated[int, Ge(1), Le(20)] = key(5, "Newton-Schulz iterations that orthogonalise.")
    muon_adjust_lr_fn: Literal["original", "match_rms_adamw"] = key(
        "match_rms_adamw",
        "Scale of an update by its matrix's shape: match_rms_adamw is 0.2 sqrt(max(rows, columns)), which "
        "takes AdamW's rates; original is sqrt(max(1, rows / columns)), which takes rates near 0.02.",
    )
    qk_clip_threshold: PositiveFloat = key(50.0, "Muonclip: largest attention logit that a head may reach.")
    qk_clip_alpha: Fraction = key(0.5, "Muonclip: share of the correction that falls to the queries.")
    qk_clip_interval: PositiveInt = key(10, "Muonclip: optimizer steps between two measurements.")
    qk_clip_chunk_size: PositiveInt = key(1024, "Muonclip: queries whose logits are measured at a time.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The learning rate: a linear warm-up, a plateau, a decay, a floor."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: DecayName = key("cosine", "Shape of the decay.")
    warmup_steps: NonNegativeInt = key(0, "Optimizer steps of linear warm-up, from 1e-4 of the peak.")
    warmup_percent: Percent | None = key(None, "Warm-up in percent of the steps; beats warmup_steps.")
    decay_steps: PositiveInt | None = key(
        None,
        "Optimizer steps of decay at the end of the schedule, their number and not the step where it ends; "
        "null: all steps after the warm-up.",
    )
    decay_percent: Percent | None = key(None, "Decay in percent of the steps; beats decay_steps.")
    total_steps: PositiveInt | None = key(
        None, "Step at which the floor is reached; null: trainer.max_steps."
    )
    final_lr_ratio: Fraction = key(0.1, "The floor, as a share of the peak.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """The loop: steps, batch, precision, cadences."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    output_dir: NonEmpty = key("runs/default", "The run directory.", is_path=True, affects="reporting")
    overwrite_output_dir: bool = key(
        False, "Move what another run left in output_dir aside and start there.", affects="start"
    )
    resume_from_checkpoint: str = key(
        "never",
        "auto: the newest checkpoint of output_dir, else a fresh start; never; latest or best: what these "
        "point to in output_dir; or a checkpoint's path.",
        is_path=True,
        words=("auto", "never", "latest", "best"),
        affects="start",
    )
    max_steps: PositiveInt = key(1000, "Optimizer steps.", affects="numerics")
    max_epochs: PositiveFloat | None = key(
        None,
        "Passes over the training data that end the run before max_steps; null: max_steps alone.",
        affects="numerics",
    )
    per_device_train_batch_size: PositiveInt = key(
        16,
        "Rows of max_length per microbatch and device; packed, their tokens form one flat run.",
        affects="data",
    )
    per_device_eval_batch_size: PositiveInt = key(16, "The same for evaluation.", affects="machine")
    gradient_accumulation_steps: PositiveInt = key(1, "Microbatches per optimizer step.", affects="machine")
    global_batch_size: PositiveInt | None = key(
        None,
        "Declared rows per optimizer step over all devices; checked against the product, never used.",
        affects="reporting",
    )
    gradient_clipping: PositiveFloat | None = key(
        1.0, "Largest global gradient norm; null: no clipping.", affects="numerics"
    )
    gradient_checkpointing: bool = key(
        False, "Recompute activations in the backward pass.", affects="machine"
    )
    gradient_checkpointing_every_n: PositiveInt = key(
        1, "Recompute every n-th block only.", affects="machine"
    )
    mixed_precision: Literal["bf16", "fp32", "no"] = key(
        "bf16", "Compute precision; no and fp32 mean fp32.", affects="numerics"
    )
    tf32: bool = key(True, "Allow TF32 for fp32 products on CUDA.", affects="numerics")
    torch_compile: bool = key(
        False, "Compile the model with torch.compile, static shapes, full graph.", affects="machine"
    )
    torch_compile_backend: Literal["inductor", "aot_eager", "eager"] = key(
        "inductor", "Compiler backend.", affects="machine"
    )
    masked_logits_only_loss: bool = key(
        True, "Run the decoder on masked positions only; false: full logits (ablation).", affects="machine"
    )
    save_steps: NonNegativeInt = key(
        1000, "Optimizer steps between checkpoints; 0: only the final one.", affects="cadence"
    )
    save_total_limit: NonNegativeInt = key(
        3, "Newest checkpoints kept, never fewer than two; 0: all.", affects="cadence"
    )
    save_keep_every: NonNegativeInt = key(
        0, "Checkpoints at multiples of this step are kept besides; 0: none are.", affects="cadence"
    )
    async_save: bool = key(
        True, "Write checkpoints beside training; false: training waits for each.", affects="machine"
    )
    early_stopping_patience: PositiveInt | None = key(
        None,
        "Evaluations without a better metric_for_best_model after which the run ends; null: none end it.",
        affects="numerics",
    )
    metric_for_best_model: (
        Literal["eval/loss", "eval/accuracy", "eval/f1", "eval/mcc", "eval/pearson", "eval/spearman"] | None
    ) = key(
        None,
        "Evaluation by which the best checkpoint is kept and linked as checkpoints/best; null: none is.",
        affects="cadence",
    )
    greater_is_better: bool | None = key(
        None,
        "Whether more of metric_for_best_model is better; null: of all but eval/loss it is.",
        affects="cadence",
    )
    eval_steps: NonNegativeInt = key(
        1000, "Optimizer steps between evaluations; 0: only the final one.", affects="cadence"
    )
    eval_max_batches: PositiveInt | None = key(
        None, "Evaluation microbatches; null: the whole split.", affects="machine"
    )
    logging_steps: PositiveInt = key(
        25, "Optimizer steps between lines of metrics and heartbeats.", affects="cadence"
    )
    timing_breakdown: bool = key(
        False, "Tell in every line of metrics which parts of a step its time went to.", affects="machine"
    )
    profile_steps: tuple[PositiveInt, PositiveInt] | None = key(
        None,
        "First and last step to trace with torch's profiler, into profile/ of the run directory (a Chrome "
        "trace per rank); null: none.",
        affects="cadence",
    )
    memory_snapshot_step: PositiveInt | None = key(
        None,
        "Step whose CUDA allocations are recorded, into profile/ of the run directory (a snapshot per rank "
        "for pytorch.org/memory_viz); null: none.",
        affects="cadence",
    )
