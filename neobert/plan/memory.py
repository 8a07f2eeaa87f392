"""Estimate of the peak memory of a training step on one device, by component."""

from __future__ import annotations

import math
from typing import NamedTuple

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig, RunConfig
from neobert.families.shape import FP32_BYTES, ModelShape, ParameterCount
from neobert.families.table import max_row_length
from neobert.kernel_table import OWN_KERNELS
from neobert.plan.derived import Derived, Measured, Values, bytes_to_mib
from neobert.plan.hardware import Assumptions
from neobert.plan.kernels import exchange_overlaps
from neobert.plan.sharding import kept_share, state_bytes
from neobert.plan.size import MEAN_DOCUMENT_TOKENS
from neobert.precision.table import run_recipe
from neobert.tasks.specs import spec_of

CUDA_RUNTIME_MIB = 1024.0
CPU_RUNTIME_MIB = 512.0
NUMBERS = {0: "no fp32 moment", 1: "one fp32 moment", 2: "two fp32 moments"}

WHOLE_VALUES = 2**28
"""Maximum number of logits that the model's own decoder computes without chunking: 1 GiB in fp32."""

IN_PLACE_VALUES = 2**29
"""Logits of a chunk of this project's Triton kernel, which needs no copy in fp32: 1 GiB in bf16."""

KEPT_SHARE = 0.8
"""Share of the device's memory up to which fsdp2 keeps all blocks gathered: an estimate may be low."""

MIN_ROWS, MAX_ROWS = 1024, 8192
"""Limits of the rows of a chunk, for any vocabulary size: products of fewer rows are memory-bound."""


class Memory(NamedTuple):
    """Predicted memory of one device in MiB."""

    weights_mib: float
    gradients_mib: float
    optimizer_mib: float
    activations_mib: float
    logits_mib: float
    runtime_mib: float

    @property
    def total_mib(self) -> float:
        """Return the sum of all components."""
        state = self.weights_mib + self.gradients_mib + self.optimizer_mib
        return state + self.activations_mib + self.logits_mib + self.runtime_mib


def plan_memory(
    config: RunConfig,
    shape: ModelShape,
    microbatch_tokens: int,
    assumptions: Assumptions,
    measured: Measured,
    kernels: str,
) -> Values:
    """Derive each memory component of one device, and the total: their sum, or the measured peak."""
    device_mib, is_cuda = assumptions.device_memory_mib, assumptions.is_cuda
    reshards = choose_resharding(config, shape, device_mib, is_cuda=is_cuda, kernels=kernels)
    parts = predict_memory(
        config, shape, microbatch_tokens, is_cuda=is_cuda, kernels=kernels, reshards=bool(reshards.value)
    )
    shared = "" if kept_share(config) == 1 else ", sharded over the ranks (fsdp2)"
    gathered = f"; gathered {reshards.reason}" if shared else ""
    weights = shape.parameters.total + shape.adapter_parameters
    trained, tokens = f"{shape.trained_parameters.total:,}", f"{microbatch_tokens:,} tokens per microbatch"
    kept = shape.kept[_kept_activations_key(config, shape, kernels)]
    checkpointing = "with" if config.trainer.gradient_checkpointing else "without"
    moments = count_optimizer_values(config.optimizer, shape.trained_parameters)
    reserved = "; torch reserves about a fifth more for shards, if the device has it" if shared else ""
    total = Derived(
        parts.total_mib,
        f"estimate: sum of the components of memory{reserved}",
    )
    if measured.memory_mib is not None:
        total = Derived(measured.memory_mib, f"measured: {measured.source}")
    return {
        "reshards": reshards,
        "weights_mib": Derived(
            parts.weights_mib, f"{weights:,} fp32 weights, and a bf16 copy in bf16 runs{shared}{gathered}"
        ),
        "gradients_mib": Derived(parts.gradients_mib, f"{trained} fp32 gradients{shared}"),
        "optimizer_mib": Derived(parts.optimizer_mib, moments.reason),
        "activations_mib": Derived(
            parts.activations_mib,
            f"{tokens}, {checkpointing} checkpointing; {kept.reason}",
        ),
        "logits_mib": Derived(
            parts.logits_mib,
            logits_reason(config, shape, microbatch_tokens, kernels, is_cuda=assumptions.is_cuda),
        ),
        "runtime_mib": Derived(parts.runtime_mib, "runtime context, kernels and workspaces (assumed)"),
        "memory_mib": total,
        "device_memory_mib": Derived(device_mib, assumptions.source),
    }


def choose_resharding(
    config: RunConfig, shape: ModelShape, device_memory_mib: float | None, *, is_cuda: bool, kernels: str
) -> Derived[bool | None]:
    """Derive whether ranks free the gathered weights of a block after its forward pass; None if unsharded.

    The plan passes the declared memory of the device, the trainer the actual memory.
    """
    requested = config.distributed.reshard_after_forward
    if kept_share(config) == 1:
        return Derived(None, "the model is not sharded")
    if not exchange_overlaps(kernels):
        return Derived(False, f"all blocks at once, because kernels {kernels} read the whole model")
    if requested is not None:
        gathered = "one block at a time" if requested else "all blocks at once"
        key = f"distributed.reshard_after_forward is {str(requested).lower()}"
        return Derived(requested, f"{gathered}, because {key}")
    if device_memory_mib is None:
        return Derived(False, "all blocks at once, because the memory of the device is unknown")
    tokens = config.trainer.per_device_train_batch_size * max_row_length(config)
    needed = predict_memory(config, shape, tokens, is_cuda=is_cuda, kernels=kernels, reshards=False).total_mib
    limit = KEPT_SHARE * device_memory_mib
    with_all = f"with all blocks at once a step needs {needed:,.0f} MiB"
    if needed > limit:
        return Derived(True, f"one block at a time, because {with_all} (limit {limit:,.0f} MiB)")
    return Derived(False, f"all blocks at once, because {with_all} (limit {limit:,.0f} MiB)")


def predict_memory(
    config: RunConfig,
    shape: ModelShape,
    microbatch_tokens: int,
    *,
    is_cuda: bool,
    kernels: str,
    reshards: bool = False,
) -> Memory:
    """Predict the peak memory of a training step on one device, by component.

    `reshards`: ranks free the gathered weights of a block after its forward pass.
    """
    recipe, state = run_recipe(config), state_bytes(config, shape, kernels, reshards=reshards)
    activations = activation_bytes(config, shape, kernels) * microbatch_tokens
    logits = logits_bytes(config, shape, microbatch_tokens, kernels, recipe.activation_bytes, is_cuda=is_cuda)
    # Two moments compete for the peak: in the blocks, and after them, when the activations are gone.
    exchange = max(state.exchange, state.last_exchange - activations - logits)
    moments = count_optimizer_values(config.optimizer, shape.trained_parameters).value * FP32_BYTES
    return Memory(
        weights_mib=bytes_to_mib(state.weights),
        gradients_mib=bytes_to_mib(state.gradients + exchange),
        optimizer_mib=bytes_to_mib(moments * kept_share(config)),
        activations_mib=bytes_to_mib(activations),
        logits_mib=bytes_to_mib(logits),
        runtime_mib=CUDA_RUNTIME_MIB if is_cuda else CPU_RUNTIME_MIB,
    )


def activation_bytes(config: RunConfig, shape: ModelShape, kernels: str) -> int:
    """Return the bytes of activations per token that the blocks keep for the backward pass.

    With gradient checkpointing, a recomputed block keeps only its input, the residual stream; the activations
    of one block are added for the recomputation.
    """
    layers = shape.num_layers
    value_bytes = run_recipe(config).activation_bytes
    whole = shape.block_bytes(
        _kept_activations_key(config, shape, kernels), value_bytes, max_row_length(config)
    )
    if not config.trainer.gradient_checkpointing:
        return layers * whole
    recomputed = math.ceil(layers / config.trainer.gradient_checkpointing_every_n)
    stream_bytes = FP32_BYTES if shape.has_fp32_stream else value_bytes
    return recomputed * stream_bytes * shape.hidden_size + (layers - recomputed) * whole + whole


def _kept_activations_key(config: RunConfig, shape: ModelShape, kernels: str) -> str:
    """Return the key of `ModelShape.kept` for these kernels: their name, "compiled" or "eager"."""
    if kernels in OWN_KERNELS:
        return kernels
    return "compiled" if config.trainer.torch_compile and "compiled" in shape.kept else "eager"


def rows_per_chunk(num_rows: int, vocab_size: int, *, in_place: bool = False) -> int:
    """Return the rows per chunk of a decoder and its loss; all rows if their logits fit `WHOLE_VALUES`.

    Otherwise a multiple of 1,024 rows with at most `WHOLE_VALUES` logits (`IN_PLACE_VALUES` if `in_place`),
    but at least enough rows for efficient matrix products.
    """
    if num_rows * vocab_size <= WHOLE_VALUES:
        return max(1, num_rows)
    rows = (IN_PLACE_VALUES if in_place else WHOLE_VALUES) // vocab_size // MIN_ROWS * MIN_ROWS
    return max(MIN_ROWS, min(MAX_ROWS, rows))


def computes_loss_in_place(kernels: str, num_logits: int, *, is_cuda: bool) -> bool:
    """Return whether a Triton kernel computes the loss: for `OWN_KERNELS`, or many logits on a GPU."""
    return kernels in OWN_KERNELS or (is_cuda and num_logits > WHOLE_VALUES)


def num_scored_rows(config: RunConfig, shape: ModelShape, num_tokens: int) -> int:
    """Return the expected number of rows that the head decodes in a microbatch of `num_tokens` tokens."""
    return math.ceil(spec_of(config).head(config, shape).num_scored(num_tokens, MEAN_DOCUMENT_TOKENS))


def logits_bytes(
    config: RunConfig,
    shape: ModelShape,
    num_tokens: int,
    kernels: str,
    compute_bytes: int,
    *,
    is_cuda: bool,
) -> int:
    """Return the peak bytes of logits and their gradients while the loss of a microbatch is computed.

    The model's own modules hold logits in the compute dtype, in fp32, and their gradient; the Triton kernel
    turns logits into their gradient in place. With chunks, and with that kernel, the fp32 gradient of a
    trained decoder is computed with the loss and held until the backward pass.
    """
    width, rows = spec_of(config).head(config, shape).width, num_scored_rows(config, shape, num_tokens)
    in_place = computes_loss_in_place(kernels, rows * width, is_cuda=is_cuda)
    at_once = min(rows, rows_per_chunk(rows, width, in_place=in_place))
    is_held = shape.trains_head and (in_place or at_once < rows)
    per_logit = compute_bytes if in_place else compute_bytes + 2 * FP32_BYTES
    return width * (at_once * per_logit + is_held * shape.hidden_size * FP32_BYTES)


def logits_reason(
    config: RunConfig, shape: ModelShape, num_tokens: int, kernels: str, *, is_cuda: bool
) -> str:
    """Return the text that explains `logits_bytes` in the plan."""
    width, rows = spec_of(config).head(config, shape).width, num_scored_rows(config, shape, num_tokens)
    positions = f"predicted positions of {num_tokens:,} tokens per microbatch x {width:,} outputs"
    gradient = ", and the decoder's gradient" if shape.trains_head else ""
    in_place = computes_loss_in_place(kernels, rows * width, is_cuda=is_cuda)
    forms = "in the compute type" if in_place else "in the compute type, in fp32, and their gradient"
    at_once = min(rows, rows_per_chunk(rows, width, in_place=in_place))
    if in_place or at_once < rows:
        return f"{positions}, {at_once:,} at a time {forms}{gradient}"
    return f"{positions} {forms}"


def count_optimizer_values(optimizer: OptimizerConfig, counts: ParameterCount) -> Derived[int]:
    """Derive the number of fp32 values in the optimizer state; `counts.linear` are the block matrices."""
    kind, rest = OPTIMIZERS[optimizer.name], counts.total - counts.linear
    values = kind.matrix_moments * counts.linear + kind.moments * rest
    if kind.matrix_moments == kind.moments:
        return Derived(values, f"{NUMBERS[kind.moments]} of {counts.total:,} weights")
    return Derived(
        values,
        f"{NUMBERS[kind.matrix_moments]} of {counts.linear:,} weights under Muon, "
        f"{NUMBERS[kind.moments].split()[0]} of {rest:,} under AdamW",
    )
