"""Model rules: size and shape of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.families.table import (
    initial_weights,
    model_family,
    requested_kernels,
    requested_rows,
    unsupported_keys,
)
from neobert.kernel_table import OWN_KERNELS, find_attention_kernels
from neobert.plan import VOCAB_MULTIPLE, Plan, build_plan
from neobert.plan.vocabulary import TokenizerSize
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.thresholds import MEMORY_SHARE

PROFILE_SHARE = 0.25
IDLE_MEMORY_SHARE = 0.5

HEADS = "model.num_attention_heads"
HEAD_SIZES = range(1, 257)
"""Head sizes that hints suggest; kernels do not support larger ones."""
USUAL_HEAD_SIZE = 64
MAX_SUGGESTED = 3

CHECKPOINTING = "trainer.gradient_checkpointing"


@rule("MOD001", "toy-model", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def toy_model(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A model far too small for its hardware or its profile.

    ## What it does
    Compares the width with the ridge point of the device (4/3 of peak FLOP/s over memory bandwidth; below it
    matrix products are memory-bound), and parameters, depth and sequence length with a quarter of the
    profile's. Smoke profiles are small on purpose, so only production runs are checked.

    ## Why is this bad?
    A width of 128 cannot keep a data-center GPU busy at any batch size: such a run once occupied two of them
    for a day at 0.004 % of their peak. A run with less than a quarter of its profile's model is a different
    run and needs its own profile.

    ## Example
    ```yaml
    profile: a100-prod
    model:
      hidden_size: 128
      num_attention_heads: 2
    ```

    ## Use instead
    ```yaml
    profile: a100-prod
    model:
      hidden_size: 768
      num_attention_heads: 12
    ```
    """
    width, floor = plan.shape.hidden_size, plan.min_hidden_size
    if width < floor.value:
        yield Violation(
            "model.hidden_size",
            f"hidden_size {width} is below the ridge point at {floor.value:.0f} ({floor.reason})",
            "raise model.hidden_size, or use a smoke profile",
        )
    if run.profile is not None:
        yield from _size_violations(plan, run.profile.name, run.profile.config)


def _size_violations(plan: Plan, name: str, profile: RunConfig) -> Violations:
    own = build_plan(profile, plan.assumptions)
    layers, expected_layers = plan.shape.num_layers, own.shape.num_layers
    parameters, expected_parameters = plan.num_linear_parameters.value, own.num_linear_parameters.value
    sizes = (
        ("model.num_hidden_layers", "blocks", layers, expected_layers),
        (_most_reduced_key(plan.shape, own.shape), "parameters in blocks", parameters, expected_parameters),
        ("dataset.max_seq_length", "tokens per sequence", plan.max_length.value, own.max_length.value),
    )
    for path, noun, value, expected in sizes:
        if value < PROFILE_SHARE * expected:
            yield Violation(
                path,
                f"{value:,} {noun}, less than a quarter of the {expected:,} of {name}",
                f"set {path} as profile {name} does, or choose another profile",
            )


def _most_reduced_key(shape: ModelShape, profile: ModelShape) -> str:
    """Return the config key of the size that was reduced most, relative to the profile."""
    shares = {
        "model.hidden_size": shape.hidden_size / profile.hidden_size,
        "model.num_hidden_layers": shape.num_layers / profile.num_layers,
        "model.intermediate_size": shape.feed_forward_width / profile.feed_forward_width,
    }
    return min(shares, key=lambda key: shares[key])


@rule("MOD002", "illegal-shape", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def illegal_shape(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Model shapes that are impossible, or that the kernels do not support.

    ## What it does
    Requires that the number of heads divides the width; that the head size is even for rotary pairs and, on a
    GPU, a multiple of 8 up to 256 (`model.type: hf` runs transformers attention, which takes any size); that
    the vocabulary size is a multiple of 128 (a published checkpoint keeps its own size) and not below the
    number of tokens of the run's tokenizer, whose file has a vocabulary without gaps between ids; that
    `dataset.max_seq_length` does not exceed `model.max_position_embeddings`; and that the three length keys
    are equal.

    ## Why is this bad?
    The run fails after the queue, or runs on slow kernels.

    ## Example
    ```yaml
    model:
      hidden_size: 770
      num_attention_heads: 12
    ```

    ## Use instead
    ```yaml
    model:
      hidden_size: 768
      num_attention_heads: 12
    ```
    """
    runs_own_kernels = run.device == "cuda" and not model_family(run.config).modules
    yield from _head_violations(plan.shape, runs_own_kernels=runs_own_kernels)
    yield from _vocabulary_violations(run, plan.assumptions.tokenizer)
    yield from _length_violations(run.config, plan)


def _head_violations(shape: ModelShape, *, runs_own_kernels: bool) -> Violations:
    hidden, heads, size = shape.hidden_size, shape.attention.heads, shape.attention.head_size
    kernels = find_attention_kernels("auto") if runs_own_kernels else ()
    needs_pairs = shape.positions == "rotary"

    def is_supported(head_size: int) -> bool:
        return not kernels or any(kernel.supports_head_size(head_size) for kernel in kernels)

    def fits(head_size: int) -> bool:
        return is_supported(head_size) and not (needs_pairs and head_size % 2)

    hint = _head_count_hint(hidden, heads, [size for size in HEAD_SIZES if fits(size)])
    if size * heads != shape.attention_width:
        yield Violation(HEADS, f"hidden_size {hidden} is not divisible by {heads} heads", hint)
        return
    if needs_pairs and size % 2:
        yield Violation(HEADS, f"head size {size} is odd, but rotary positions need pairs", hint)
    if not is_supported(size):
        names = ", ".join(kernel.name for kernel in kernels)
        yield Violation(HEADS, f"head size {size} is not supported by {names}", hint)


def _head_count_hint(hidden: int, heads: int, head_sizes: Sequence[int]) -> str:
    """Return a hint with numbers of heads that result in one of these head sizes, near the usual size.

    If no number of heads does, the hint is the closest width for the present number.
    """
    if sizes := [size for size in head_sizes if hidden % size == 0]:
        nearest = sorted(sizes, key=lambda size: abs(log(size / USUAL_HEAD_SIZE)))[:MAX_SUGGESTED]
        *counts, last = sorted(hidden // size for size in nearest)
        others = f"{', '.join(map(str, counts))} or " if counts else ""
        return f"set {HEADS} to {others}{last}; a head size of {USUAL_HEAD_SIZE} is usual"
    size = min(head_sizes, key=lambda size: abs(heads * size - hidden))
    return f"set model.hidden_size to {heads * size}, for a head size of {size}"


def _vocabulary_violations(run: ResolvedRun, tokenizer: TokenizerSize | None) -> Violations:
    config = run.config
    if tokenizer is not None and tokenizer.fault:
        hint = "copy the tokenizer again, or set tokenizer.path to another one"
        yield Violation("tokenizer.path", tokenizer.fault, hint)
    rows, is_fresh = requested_rows(config), initial_weights(config) is None
    if rows is None:
        return
    if rows % VOCAB_MULTIPLE and is_fresh:
        yield Violation(
            "model.vocab_size",
            f"vocab_size {rows:,} is not a multiple of {VOCAB_MULTIPLE}",
            "remove model.vocab_size: the default is the size of the tokenizer, rounded up",
        )
    if tokenizer is None or tokenizer.is_assumed:
        return
    # Weights may have no rows for inert tokens: these are not in the text.
    if rows < tokenizer.num_tokens - (0 if is_fresh else tokenizer.num_inert):
        is_of_weights = run.origin("model.vocab_size").kind == "default"
        key = "model.pretrained_checkpoint" if is_of_weights else "model.vocab_size"
        message = f"the model has {rows:,} embedding rows, but {tokenizer.source}"
        yield Violation(key, message, vocabulary_hint(config))


def vocabulary_hint(config: RunConfig) -> str:
    """Return the hint for a tokenizer with more tokens than the model has embedding rows."""
    if (weights := initial_weights(config)) is not None:
        if config.tokenizer.path == weights:
            resized = "or give the model rows for added tokens: model.resize_token_embeddings(len(tokenizer))"
            return f"copy the tokenizer of {weights} again, {resized}"
        return f"set tokenizer.path to the tokenizer of model.pretrained_checkpoint, {weights}"
    return "remove model.vocab_size: the default is the size of the tokenizer"


def _length_violations(config: RunConfig, plan: Plan) -> Violations:
    positions, max_length = plan.shape.max_positions, plan.max_length.value
    if max_length > positions:
        yield Violation(
            "model.max_position_embeddings",
            f"max_seq_length {max_length} exceeds max_position_embeddings {positions}",
            f"set dataset.max_seq_length to {positions}, or model.max_position_embeddings to {max_length}",
        )
    for path, length in (
        ("datacollator.max_length", config.datacollator.max_length),
        ("tokenizer.max_length", config.tokenizer.max_length),
    ):
        if length is not None and length != config.dataset.max_seq_length:
            yield Violation(
                path,
                f"{path} is {length}, but dataset.max_seq_length is {config.dataset.max_seq_length}",
                f"remove {path}: the default is dataset.max_seq_length",
            )


@rule("MOD003", "checkpointing-against-memory", severity=Severity.WARN, level=Level.STATIC)
def checkpointing_against_memory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Gradient checkpointing that contradicts the predicted memory.

    ## What it does
    Plans the run with and without recomputation. Warns if only recomputation would make the run fit, and
    if recomputation is on although the run without it would leave half of the device memory unused.

    ## Why is this bad?
    Recomputation costs about a third more work per step. Without it, a run that needs it crashes at the first
    long batch.

    ## Example
    ```yaml
    trainer:
      per_device_train_batch_size: 256
      gradient_checkpointing: false
    ```

    ## Use instead
    ```yaml
    trainer:
      per_device_train_batch_size: 256
      gradient_checkpointing: true
    ```
    """
    device = plan.device_memory_mib.value
    if device is None:
        return
    path, is_on = CHECKPOINTING, run.config.trainer.gradient_checkpointing
    trainer = replace(run.config.trainer, gradient_checkpointing=not is_on)
    other = build_plan(replace(run.config, trainer=trainer), plan.assumptions).memory_mib.value
    current = plan.memory_mib.value
    if not is_on and current > MEMORY_SHARE * device >= other:
        yield Violation(
            path,
            f"the step needs {current:,.0f} of {device:,.0f} MiB (limit {MEMORY_SHARE:.0%}; {other:,.0f} "
            "with recomputation)",
            f"{recomputation_hint(run.config)}, or lower trainer.per_device_train_batch_size",
        )
    if is_on and other < IDLE_MEMORY_SHARE * device:
        yield Violation(
            path,
            f"without gradient checkpointing the step needs only {other:,.0f} of {device:,.0f} MiB (a "
            f"warning below {IDLE_MEMORY_SHARE:.0%})",
            f"set {path} to false to save about a quarter of each step",
        )


def recomputation_hint(config: RunConfig) -> str:
    """Return the hint that enables recomputation, which this project's block kernels do not support."""
    blocks, _ = requested_kernels(config)
    kernels = "" if blocks not in OWN_KERNELS else " and model.kernel_backend to torch"
    return f"set {CHECKPOINTING} to true{kernels}"


@rule("MOD005", "unsupported-by-model", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def unsupported_by_model(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that the model family does not support.

    ## What it does
    Compares the run with what the family of `model.type` supports. A transformers model (`type: hf`)
    packs with `attention: sdpa` only, pools as the classifier of its architecture does, and has no QK-clip.
    An MPNet and a DeBERTa-v2 compute attention by themselves and are not packed; an MPNet has no gradient
    checkpointing, a ModernBERT in padded rows no `torch_compile`.
    NeoBERT's `init: scaled` does not read `model.embedding_init_range` and `model.decoder_init_range`.
    A task needs a head that the architecture has; masked tokens need attention in both directions, and next
    tokens causal attention; Muon needs an architecture that declares the matrices of its blocks.

    ## Why is this bad?
    The trainer refuses these keys too, but only after the data is prepared. A model that attends to later
    tokens copies the next token, and a causal one sees only the left half of the context of a masked token.

    ## Example
    ```yaml
    model:
      type: hf
      architecture: bert
      attention: eager
    datacollator:
      pack_sequences: true
    ```

    ## Use instead
    ```yaml
    model:
      type: hf
      architecture: bert
      attention: sdpa
    datacollator:
      pack_sequences: true
    ```
    """
    unsupported = [*unsupported_keys(run.config)]
    for key, problem, hint in unsupported:
        yield Violation(key, problem, hint)
    yield from _unknown_matrix_violations(run.config, plan.shape)
    if all(key != "task" for key, *_ in unsupported):  # one reason is enough
        yield from _direction_violations(run.config, plan.shape)


def _unknown_matrix_violations(config: RunConfig, shape: ModelShape) -> Violations:
    name = config.optimizer.name
    if OPTIMIZERS[name].updates_matrices_by_muon and not shape.linear_layers:
        message = f"{name} needs the layouts of matrices, and {shape.architecture} declares none"
        yield Violation("optimizer.name", message, "set optimizer.name to adamw")


def _direction_violations(config: RunConfig, shape: ModelShape) -> Violations:
    spec, is_causal = spec_of(config), shape.attention.is_causal
    if not spec.is_self_supervised or (spec.predicts == "next") == is_causal:
        return
    direction = "is causal" if is_causal else "attends in both directions"
    message = f"task {spec.name} predicts {spec.predicts} tokens, but {shape.architecture} {direction}"
    wanted = "an encoder" if is_causal else "a causal model"
    yield Violation("task", message, f"describe {wanted} in section model, or set task to another one")
