"""MOD: the model's size and shape."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.families.table import initial_weights, requested_kernels, requested_rows
from neobert.plan import VOCAB_MULTIPLE, Plan, build_plan
from neobert.plan.kernels import OWN_KERNELS
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.thresholds import MEMORY_SHARE

PROFILE_SHARE = 0.25
IDLE_MEMORY_SHARE = 0.5
FLASH_HEAD_MULTIPLE = 8
FLASH_HEAD_LARGEST = 256
CHECKPOINTING = "trainer.gradient_checkpointing"


@rule("MOD001", "toy-model", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def toy_model(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A model that is a toy for the hardware or for the profile it claims.

    ## What it does
    Compares the width with the ridge of the device (4/3 of its peak over its memory bandwidth: below it
    the matrix products wait for memory), and parameters, depth and sequence length with a quarter of what
    the profile itself has. A smoke profile is a toy on purpose, so only production runs are judged.

    ## Why is this bad?
    A width of 128 cannot keep a data-centre GPU busy at any batch size: such a run once held two of them
    for a day at 0.004 % of their peak. And a run with less than a quarter of its profile's model is
    another run: it needs a profile that says so.

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
            f"hidden_size {width} is below the ridge at {floor.value:.0f} ({floor.reason})",
            "widen the model, or use a smoke profile",
        )
    if run.profile is not None:
        yield from _far_below_profile(plan, run.profile.name, run.profile.config)


def _far_below_profile(plan: Plan, name: str, profile: RunConfig) -> Violations:
    own = build_plan(profile, plan.assumptions)
    layers, expected_layers = plan.shape.num_layers, own.shape.num_layers
    parameters, expected_parameters = plan.num_linear_parameters.value, own.num_linear_parameters.value
    sizes = (
        ("model.num_hidden_layers", "blocks", layers, expected_layers),
        (_most_shrunk(plan.shape, own.shape), "parameters in blocks", parameters, expected_parameters),
        ("dataset.max_seq_length", "tokens per sequence", plan.max_length.value, own.max_length.value),
    )
    for path, noun, value, expected in sizes:
        if value < PROFILE_SHARE * expected:
            yield Violation(
                path,
                f"{value:,} {noun}, less than a quarter of the {expected:,} of {name}",
                f"keep the size of {name}, or name a profile that is meant for this one",
            )


def _most_shrunk(shape: ModelShape, profile: ModelShape) -> str:
    """Return the key that took most from the profile's size."""
    shares = {
        "model.hidden_size": shape.hidden_size / profile.hidden_size,
        "model.num_hidden_layers": shape.num_layers / profile.num_layers,
        "model.intermediate_size": shape.feed_forward_width / profile.feed_forward_width,
    }
    return min(shares, key=lambda key: shares[key])


@rule("MOD002", "illegal-shape", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def illegal_shape(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Shapes that cannot be built, or that the kernels cannot run.

    ## What it does
    Heads divide the width; a head is even for rotary pairs and, on a GPU, a multiple of 8 up to 256; the
    vocabulary is a multiple of 128 that holds the tokenizer's (a published checkpoint keeps its own);
    sequences fit the positions; the three keys that give a length agree; packing has rotary positions.

    ## Why is this bad?
    At best the run dies after the queue, at worst it does not: learned positions run on across packed
    documents and the loss still falls.

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
    on_gpu = run.device == "cuda"
    yield from _heads(plan.shape, on_gpu=on_gpu)
    yield from _vocabulary(run.config)
    yield from _lengths(run.config, plan)


def _heads(shape: ModelShape, *, on_gpu: bool) -> Violations:
    hidden, heads, size = shape.hidden_size, shape.num_heads, shape.head_size
    path = "model.num_attention_heads"
    if size * heads != shape.attention_width:
        yield Violation(path, f"{heads} heads do not divide hidden_size {hidden}", "a head of 64 is usual")
        return
    if shape.positions == "rotary" and size % 2:
        yield Violation(path, f"a head of {size} cannot be rotated in pairs", "make hidden_size / heads even")
    if on_gpu and (size % FLASH_HEAD_MULTIPLE or size > FLASH_HEAD_LARGEST):
        yield Violation(
            path,
            f"the attention kernels take heads of a multiple of 8 up to 256, not {size}",
            "a head of 64 or 128 is what they are tuned for",
        )


def _vocabulary(config: RunConfig) -> Violations:
    rows, words = requested_rows(config), config.tokenizer.vocab_size
    if rows is None:
        return
    if rows % VOCAB_MULTIPLE and initial_weights(config) is None:
        yield Violation(
            "model.vocab_size",
            f"vocab_size {rows:,} is no multiple of {VOCAB_MULTIPLE}",
            "leave it null: the tokenizer's size is rounded up",
        )
    if words is not None and rows < words:
        yield Violation(
            "model.vocab_size",
            f"vocab_size {rows:,} does not hold the tokenizer's {words:,}",
            "leave it null: it follows the tokenizer",
        )


def _lengths(config: RunConfig, plan: Plan) -> Violations:
    positions, max_length = plan.shape.max_positions, plan.max_length.value
    if max_length > positions:
        yield Violation(
            "model.max_position_embeddings",
            f"max_seq_length {max_length} exceeds max_position_embeddings {positions}",
            "leave model.max_position_embeddings out: it follows dataset.max_seq_length",
        )
    for path, length in (
        ("datacollator.max_length", config.datacollator.max_length),
        ("tokenizer.max_length", config.tokenizer.max_length),
    ):
        if length is not None and length != config.dataset.max_seq_length:
            yield Violation(
                path,
                f"{path} {length} disagrees with dataset.max_seq_length {config.dataset.max_seq_length}",
                "leave it null: it follows dataset.max_seq_length",
            )
    if config.datacollator.pack_sequences and plan.shape.positions == "learned":
        yield Violation(
            "model.rope",
            "learned positions run on across packed documents",
            "set model.rope to true, or datacollator.pack_sequences to false",
        )


@rule("MOD003", "checkpointing-against-memory", severity=Severity.WARN, level=Level.STATIC)
def checkpointing_against_memory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Gradient checkpointing that contradicts the predicted memory.

    ## What it does
    Plans the run both ways. Warns where recomputing activations would make a run fit that does not, and
    where it is on though the run without it would leave half of the device empty.

    ## Why is this bad?
    Recomputing costs about a third more work per step; not recomputing costs the run, at the first long
    batch.

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
            f"predicted {current:,.0f} MiB of {device:,.0f}; with checkpointing {other:,.0f} MiB",
            _way_to_fit(run.config),
        )
    if is_on and other < IDLE_MEMORY_SHARE * device:
        yield Violation(
            path,
            f"without checkpointing the run would take {other:,.0f} MiB of {device:,.0f}",
            f"set {path} to false and save about a quarter of each step",
        )


def _way_to_fit(config: RunConfig) -> str:
    return f"{way_to_recompute(config)}, or lower the batch per device"


def way_to_recompute(config: RunConfig) -> str:
    """Say which keys to set. The own kernels recompute nothing: there the price is the kernels as well."""
    blocks, _ = requested_kernels(config)
    kernels = "" if blocks not in OWN_KERNELS else " with model.kernel_backend torch"
    return f"set {CHECKPOINTING} to true{kernels}"
