"""The schema: one frozen, slotted dataclass per section. It holds what was requested, and nothing derived.

Every key's description stands next to it, and the JSON Schema, `explain` and the reference pages are
generated from here. So is what a change of a key affects: which changes a resume allows, what a measurement
holds for, and which differences `bench` names. Bounds and closed sets are checked at hydration; what couples
keys is a rule.
"""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import date
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt, MinLen

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Beta = Annotated[float, Ge(0), Lt(1)]
Percent = Annotated[float, Ge(0), Le(100)]
NonEmpty = Annotated[str, MinLen(1)]
Silence = Annotated[float, Gt(0), Le(604_800)]


ADAMS = ("adamw", "adam")


Effect = Literal["model", "data", "numerics", "machine", "cadence", "start", "reporting"]
"""What a change of a key affects.

model: parameters and optimizer state: another run, which cannot resume this one's checkpoints.
data: which examples there are, in which order, and what is predicted: another run too.
numerics: how the run learns; it may change when a run resumes.
machine: speed and memory; the results are the same within the precision.
cadence: what the loop does between steps: saves, evaluations, lines of metrics, traces.
start: how a session starts.
reporting: how the run is named, guarded and watched; no step depends on it.
"""
EFFECTS: tuple[str, ...] = get_args(Effect)
PER_KEY: Literal["per key"] = "per key"


def key(default: Any, description: str, *, affects: Effect | None = None, **more: Any) -> Any:
    """A key with its default and the line that describes it.

    Without `affects` it affects what its section does. Further metadata: `is_path` for a path, relative to
    the run file that gives it; `words` for values of such a key that are no paths; `replaces` for keys of the
    same section that lose what a farther layer gave them where a nearer one gives this key; `by_content` for
    a key of the data that may change when a run resumes, as the text or tokenizer itself is compared.
    """
    return field(default=default, metadata=_metadata(description, affects) | more)


def section(kind: type[Any], description: str, *, affects: Effect | Literal["per key"]) -> Any:
    """A section that is filled with its defaults when a file leaves it out.

    `affects` holds for all keys that do not state their own; PER_KEY requires each key to state it.
    """
    if affects == PER_KEY:
        require_effects(kind)
    return field(default_factory=kind, metadata=_metadata(description, affects))


def _metadata(description: str, affects: str | None) -> dict[str, Any]:
    if affects is None:
        return {"description": description}
    if affects not in (*EFFECTS, PER_KEY):
        raise TypeError(f"affects={affects!r} is none of {', '.join(EFFECTS)}")
    return {"description": description, "affects": affects}


def require_effects(kind: type[Any]) -> None:
    """Raise TypeError for a key that does not state what it affects."""
    for item in fields(kind):
        if "affects" not in item.metadata:
            raise TypeError(
                f"{kind.__name__}.{item.name} needs affects=, one of {', '.join(EFFECTS)}: "
                "what a change of the key affects"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The encoder: pre-norm, rotary positions, RMSNorm and SwiGLU (NeoBERT, arXiv:2502.19587)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    hidden_size: PositiveInt = key(768, "Width of the residual stream.")
    num_hidden_layers: PositiveInt = key(28, "Number of encoder blocks.")
    num_attention_heads: PositiveInt = key(12, "Number of attention heads; they divide hidden_size.")
    intermediate_size: PositiveInt = key(
        3072, "Nominal feed-forward width; SwiGLU uses two thirds of it, rounded up to a multiple of 8."
    )
    vocab_size: PositiveInt | None = key(
        None, "Rows of the embedding; null: the tokenizer's size rounded up to a multiple of 128."
    )
    max_position_embeddings: PositiveInt | None = key(
        None, "Longest sequence that the model accepts, in tokens; null: dataset.max_seq_length."
    )
    rope: bool = key(True, "Rotary positions; false: learned absolute positions (unpacked only).")
    rope_theta: PositiveFloat = key(10_000.0, "Base of the rotary frequencies.")
    rms_norm: bool = key(True, "RMSNorm; false: LayerNorm (ablation).")
    norm_eps: PositiveFloat = key(1e-5, "Epsilon of the norms.")
    hidden_act: Literal["swiglu", "gelu"] = key("swiglu", "Feed-forward activation.")
    tie_word_embeddings: bool = key(
        False, "Share the embedding with the decoder; the decoder has a bias only when it is not shared."
    )
    embedding_init_range: PositiveFloat = key(0.02, "Embeddings start uniform in plus or minus this.")
    decoder_init_range: PositiveFloat = key(0.02, "Linear layers start uniform in plus or minus this.")
    attn_backend: Literal["auto", "flash_attn_varlen", "torch_varlen", "flex", "sdpa"] = key(
        "auto",
        "Attention kernel; auto takes the fastest that is legal on the device. Never changed silently. "
        "flash_attn_varlen is FlashAttention 4, 3 or 2, the newest that is installed and legal; flex is "
        "torch's flex_attention with a mask of documents.",
        affects="machine",
    )
    kernel_backend: Literal["auto", "torch", "liger", "triton", "fused"] = key(
        "auto",
        "Kernels of the blocks. auto takes, for packed bf16 training on CUDA with attn_backend auto, fused "
        "(quack-kernels, Hopper), else triton; elsewhere liger where it is installed, else torch.",
        affects="machine",
    )
    pretrained_checkpoint: str | None = key(
        None,
        "Checkpoint folder whose weights the run starts from, with a fresh optimizer and schedule.",
        is_path=True,
        affects="numerics",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """Where the tokenizer comes from. `path` beats `name`; with neither, one is trained from the corpus."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str | None = key(None, "Hub name of a tokenizer.", by_content=True)
    path: str | None = key(None, "Local folder or tokenizer.json.", is_path=True, by_content=True)
    revision: str | None = key(None, "Hub revision; production runs pin it.", by_content=True)
    trust_remote_code: bool = key(False, "Run code from the tokenizer's hub repository.", by_content=True)
    vocab_size: PositiveInt | None = key(
        None,
        "Size of the WordPiece vocabulary to train when neither name nor path is given.",
        by_content=True,
    )
    max_length: PositiveInt | None = key(None, "Longest sequence in tokens; null: dataset.max_seq_length.")
    allow_special_token_rewrite: bool = key(
        False, "Add mask, pad and sequence markers to a tokenizer that lacks them.", by_content=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """The text: a path, a `datasets` name, or the corpus that every Python carries."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str | None = key(
        None,
        "A `datasets` name on the hub, or builtin:python-docs for CPython's own documentation.",
        replaces=("path",),
    )
    config: str | None = key(None, "Configuration of the named data set.")
    revision: str | None = key(None, "Hub revision of the named data set; null: its newest.")
    path: str | None = key(
        None,
        "File or folder of text, JSON, CSV, TSV or parquet, or a saved `datasets` folder.",
        is_path=True,
        replaces=("name", "config"),
        by_content=True,
    )
    train_split: str = key("train", "Split to train on; slices such as train[:1%] are understood.")
    eval_split: str | None = key(
        None, "Split to evaluate on; null: validation, eval, test or dev where the data has one."
    )
    eval_samples: PositiveInt | None = key(
        None,
        "Without an evaluation split: documents at the head of the training split kept for evaluation.",
        replaces=("validation_split",),
    )
    validation_split: Annotated[float, Gt(0), Lt(1)] | None = key(
        None,
        "Without an evaluation split: share of the training documents kept for evaluation, chosen by a hash "
        "of their text.",
        replaces=("eval_samples",),
    )
    text_column: str | None = key(None, "Column that holds the text; null: text, sentence or content.")
    max_seq_length: PositiveInt = key(1024, "Longest sequence in tokens, markers included.")
    min_length: PositiveInt = key(1, "Documents with fewer tokens than this, markers included, are left out.")
    long_documents: Literal["split", "truncate", "drop", "error"] = key(
        "split", "What happens to a document longer than the context; always counted and reported."
    )
    streaming: bool = key(False, "Tokenise while training instead of preparing a memory map first.")
    shuffle_buffer_size: NonNegativeInt = key(
        10_000, "Streaming: documents that are shuffled and packed together; 0 keeps the source's order."
    )
    streaming_read_retries: NonNegativeInt = key(
        4, "Streaming: attempts after a failed read.", affects="machine"
    )
    streaming_read_retry_backoff_seconds: PositiveFloat = key(
        5.0, "Streaming: first pause between attempts.", affects="machine"
    )
    streaming_read_retry_max_backoff_seconds: PositiveFloat = key(
        60.0, "Streaming: longest pause.", affects="machine"
    )
    num_proc: PositiveInt = key(1, "Processes that tokenise while preparing.", affects="machine")
    num_workers: NonNegativeInt = key(
        1, "Threads that build batches ahead; 0 builds them in the training loop.", affects="machine"
    )
    prefetch_factor: PositiveInt = key(4, "Microbatches that each thread keeps ready.", affects="machine")
    cache_dir: str | None = key(
        None,
        "Where prepared data is kept; null: $NEOBERT_CACHE, else neobert under the user's cache folder.",
        is_path=True,
        affects="machine",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCollatorConfig:
    """How documents become microbatches, and what is masked."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    mlm_probability: Annotated[float, Gt(0), Le(1)] = key(0.2, "Share of the tokens that are predicted.")
    mask_all: bool = key(False, "Replace every chosen token with the mask; false: 80/10/10.")
    pack_sequences: bool = key(
        True, "Pack documents into flat microbatches, isolated from each other; false: padded rows."
    )
    max_length: PositiveInt | None = key(None, "Longest sequence in tokens; null: dataset.max_seq_length.")
    pad_to_multiple_of: PositiveInt | None = key(None, "Padded rows only: round the row length up to this.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer. Norms, biases and embeddings never decay.

    Under muon and muonclip the matrices of the blocks are Muon's; the decoder, embeddings, norms and biases
    stay AdamW's, in the same optimizer and on the same schedule.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: Literal["adamw", "adam", "muon", "muonclip"] = key(
        "adamw",
        "Update rule; adam adds weight_decay to the gradient (L2); muonclip is muon with attention logits "
        "held below a threshold.",
        affects="model",
    )
    lr: PositiveFloat = key(6e-4, "Peak learning rate.")
    betas: tuple[Beta, Beta] = key((0.9, 0.999), "Decay of the first and second moment (AdamW).")
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

    name: Literal["cosine", "linear"] = key("cosine", "Shape of the decay.")
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
    metric_for_best_model: Literal["eval/loss", "eval/accuracy"] | None = key(
        None,
        "Evaluation by which the best checkpoint is kept and linked as checkpoints/best; null: none is.",
        affects="cadence",
    )
    greater_is_better: bool | None = key(
        None,
        "Whether more of metric_for_best_model is better; null: of eval/accuracy it is.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedConfig:
    """Processes and how they share the model."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    nproc_per_node: PositiveInt = key(1, "Processes per node, one a device.")
    nnodes: PositiveInt = key(1, "Nodes.")
    mode: Literal["replicated", "fsdp2"] = key(
        "replicated",
        "Several processes: replicated keeps the whole model on each and averages gradients; fsdp2 leaves "
        "each its part of parameters, gradients and optimizer state.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig:
    """Weights & Biases, opt-in; metrics.jsonl is always written."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    enabled: bool = key(False, "Report to Weights & Biases.")
    project: str = key("neobert", "Project.")
    entity: str | None = key(None, "Team or user.")
    name: str | None = key(None, "Run name; null: the run directory's name.")
    mode: Literal["online", "offline"] = key("online", "offline writes locally, to be synchronised later.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What the guard holds the run to."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    max_lost_minutes: Annotated[float, Gt(0), Le(240)] = key(
        60.0, "Most work, in minutes, that a crash may cost; to lose more than 240 takes a waiver of CKP002."
    )
    walltime_limit_hours: PositiveFloat | None = key(None, "The run must end within this; null: no limit.")
    price_per_gpu_hour: NonNegativeFloat | None = key(None, "For the cost in the plan, in any currency.")
    receipt_ttl_hours: Annotated[float, Gt(0), Le(168)] = key(
        24.0, "Age at which a preflight receipt is stale; after a week a machine is another one."
    )
    loss_spike_factor: Annotated[float, Gt(1)] | None = key(
        10.0, "A step's loss of this many times the recent mean is a spike; null: none is."
    )
    on_loss_spike: Literal["stop", "warn"] = key(
        "stop", "stop: before the optimizer has seen it; warn: write its batches down and go on."
    )
    on_degradation: Literal["stop", "warn"] = key(
        "stop",
        "Action when recompiles or kernel fallbacks grew in 3 of the last 20 logging lines: stop saves a "
        "checkpoint and ends the run with exit code 4, warn only logs. Smoke profiles warn.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogConfig:
    """What the launcher takes for a stall, and what it does then.

    A limit is of silence: of the time in which no rank gets any further. It holds until the run has shown
    how long the phase takes; ten times the longest that was seen is then enough, within these limits. None is
    above a week: a longer one would be no limit at all.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    start_limit_s: Silence = key(1800.0, "Before the first step: processes, data, model; a week at most.")
    compile_limit_s: Silence = key(3600.0, "A session's first steps, with compilation; a week at most.")
    step_limit_s: Silence = key(1800.0, "A later step; a week at most.")
    data_wait_limit_s: Silence = key(1800.0, "The wait for microbatches, or other ranks; a week at most.")
    evaluation_limit_s: Silence = key(1800.0, "A microbatch of the evaluation; a week at most.")
    save_limit_s: Silence = key(3600.0, "Training that stands still for a checkpoint; a week at most.")
    learned_floor_s: Silence = key(180.0, "What was learned lowers no limit below this; a week at most.")
    grace_s: Annotated[float, Ge(0), Le(3600)] = key(
        30.0, "A stalled run is asked to end, and killed so much later; it is paid for until then."
    )
    max_restarts: Annotated[int, Ge(0), Le(100)] = key(
        3, "Sessions begun again, from the newest checkpoint, before there is another one; 0: none is."
    )
    heartbeat_interval_s: Annotated[float, Gt(0), Le(600)] = key(
        10.0, "Longest time between two heartbeats of a rank; no stall is seen sooner."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """A finding that somebody answers for, until a day."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    code: Annotated[str, MinLen(1)] = field(metadata={"description": "Code of the rule that is waived."})
    reason: Annotated[str, MinLen(10)] = field(metadata={"description": "Why, in a sentence."})
    expires: date = field(metadata={"description": "Last day on which the waiver holds."})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run, as asked for."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    profile: str | None = key(None, "Named profile that the run builds on.", affects="reporting")
    task: Literal["pretrain"] = key("pretrain", "What is trained.", affects="model")
    seed: NonNegativeInt = key(0, "Seed of weights, order, masks.", affects="data")
    variables: dict[str, Any] = field(
        default_factory=dict, metadata=_metadata("Values named once, used as $variables.name.", "reporting")
    )
    model: ModelConfig = section(ModelConfig, "The encoder.", affects="model")
    tokenizer: TokenizerConfig = section(TokenizerConfig, "The tokenizer.", affects="data")
    dataset: DatasetConfig = section(DatasetConfig, "The text.", affects="data")
    datacollator: DataCollatorConfig = section(DataCollatorConfig, "Packing and masking.", affects="data")
    optimizer: OptimizerConfig = section(OptimizerConfig, "The update rule.", affects="numerics")
    scheduler: SchedulerConfig = section(SchedulerConfig, "The learning rate.", affects="numerics")
    trainer: TrainerConfig = section(TrainerConfig, "The loop.", affects=PER_KEY)
    distributed: DistributedConfig = section(DistributedConfig, "Processes.", affects="machine")
    wandb: WandbConfig = section(WandbConfig, "Weights & Biases.", affects="reporting")
    guard: GuardConfig = section(GuardConfig, "Limits that the guard enforces.", affects="reporting")
    watchdog: WatchdogConfig = section(
        WatchdogConfig, "Stalls, and sessions begun again after one.", affects="reporting"
    )
    waivers: tuple[Waiver, ...] = key((), "Findings that somebody answers for.", affects="reporting")


require_effects(RunConfig)
