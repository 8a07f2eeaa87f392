"""The memory of a training step on one device, by part."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neobert.config.schema import RunConfig
from neobert.families.shape import BF16_BYTES, FP32_BYTES, ModelShape
from neobert.families.table import longest_row
from neobert.kernel_table import OWN_KERNELS
from neobert.plan.derived import Derived, Measured, Values
from neobert.plan.hardware import Assumptions
from neobert.plan.kernels import exchange_overlaps
from neobert.plan.logits import logits_bytes, logits_reason
from neobert.plan.moments import optimizer_values
from neobert.plan.units import mib

CUDA_RUNTIME_MIB = 1024.0
CPU_RUNTIME_MIB = 512.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Predicted memory of one device in MiB."""

    weights_mib: float
    gradients_mib: float
    optimizer_mib: float
    activations_mib: float
    logits_mib: float
    runtime_mib: float

    @property
    def total_mib(self) -> float:
        """All parts."""
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
    """Derive each part of the memory of one device, and their sum or what was measured."""
    parts = predict_memory(config, shape, microbatch_tokens, is_cuda=assumptions.is_cuda, kernels=kernels)
    shared = "" if kept_share(config) == 1 else ", in parts over the ranks (fsdp2)"
    state, tokens = f"{shape.parameters.total:,}", f"{microbatch_tokens:,} tokens per microbatch"
    checkpointing = "with" if config.trainer.gradient_checkpointing else "without"
    total = Derived(parts.total_mib, "estimate: state + activations + logits + runtime")
    if measured.memory_mib is not None:
        total = Derived(measured.memory_mib, f"measured: {measured.source}")
    return {
        "weights_mib": Derived(parts.weights_mib, f"{state} fp32 weights and, in bf16, their copy{shared}"),
        "gradients_mib": Derived(parts.gradients_mib, f"{state} fp32 gradients{shared}"),
        "optimizer_mib": Derived(
            parts.optimizer_mib, optimizer_values(config.optimizer, shape.parameters).reason
        ),
        "activations_mib": Derived(
            parts.activations_mib,
            f"{tokens}, {checkpointing} checkpointing; {shape.kept[_kept_by(config, kernels)].reason}",
        ),
        "logits_mib": Derived(parts.logits_mib, logits_reason(config, shape, microbatch_tokens, kernels)),
        "runtime_mib": Derived(parts.runtime_mib, "context, kernels and workspaces, assumed"),
        "memory_mib": total,
        "device_memory_mib": Derived(assumptions.device_memory_mib, assumptions.source),
    }


def predict_memory(
    config: RunConfig,
    shape: ModelShape,
    microbatch_tokens: int,
    *,
    is_cuda: bool,
    kernels: str,
) -> Memory:
    """Predict the peak of a training step on one device."""
    counts, compute_bytes = shape.parameters, _compute_bytes(config)
    compute_copy = compute_bytes if compute_bytes < FP32_BYTES else 0
    share = kept_share(config)
    gathered = FP32_BYTES if share < 1 else 0
    leaves_by_block = exchange_overlaps(kernels) and config.trainer.gradient_accumulation_steps == 1
    gradients_kept = share if leaves_by_block else 1.0
    return Memory(
        weights_mib=mib(counts.total * (FP32_BYTES * share + gathered + compute_copy)),
        gradients_mib=mib(counts.total * FP32_BYTES * gradients_kept),
        optimizer_mib=mib(optimizer_values(config.optimizer, counts).value * FP32_BYTES * share),
        activations_mib=mib(activation_bytes(config, shape, kernels) * microbatch_tokens),
        logits_mib=mib(logits_bytes(config, shape, microbatch_tokens, kernels, _compute_bytes(config))),
        runtime_mib=CUDA_RUNTIME_MIB if is_cuda else CPU_RUNTIME_MIB,
    )


def kept_share(config: RunConfig) -> float:
    """Return the share of weights and optimizer state that a rank keeps between steps.

    In parts, a rank has its own and, within a step, the whole weights; gradients leave it block by block, but
    with accumulation, or under the fused kernels, only at the end.
    """
    ranks = config.distributed.nproc_per_node * config.distributed.nnodes
    return 1 / ranks if config.distributed.mode == "fsdp2" else 1.0


def activation_bytes(config: RunConfig, shape: ModelShape, kernels: str) -> int:
    """Return the bytes per token that the blocks keep for the backward pass.

    A recomputed block keeps its input, the residual stream in fp32; while it is recomputed, one block's whole
    set is there as well.
    """
    layers = shape.num_layers
    whole = shape.block_bytes(_kept_by(config, kernels), _compute_bytes(config), longest_row(config))
    if not config.trainer.gradient_checkpointing:
        return layers * whole
    recomputed = math.ceil(layers / config.trainer.gradient_checkpointing_every_n)
    return recomputed * FP32_BYTES * shape.hidden_size + (layers - recomputed) * whole + whole


def _kept_by(config: RunConfig, kernels: str) -> str:
    if kernels in OWN_KERNELS:
        return kernels
    return "compiled" if config.trainer.torch_compile else "eager"


def _compute_bytes(config: RunConfig) -> int:
    return BF16_BYTES if config.trainer.mixed_precision == "bf16" else FP32_BYTES
