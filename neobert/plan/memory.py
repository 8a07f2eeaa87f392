"""What a training step keeps in a device's memory, by part.

D hidden, F feed-forward width. The attention kernels in use store no scores, so nothing grows with the square
of the length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neobert.config.schema import RunConfig
from neobert.plan.derived import Derived, Measured, Values
from neobert.plan.hardware import Assumptions
from neobert.plan.moments import optimizer_values
from neobert.plan.parameters import ParameterCount, feed_forward_width
from neobert.plan.units import mib

FP32_BYTES = 4
BF16_BYTES = 2
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
    counts: ParameterCount,
    vocab_size: int,
    microbatch_tokens: int,
    assumptions: Assumptions,
    measured: Measured,
) -> Values:
    """Derive each part of the memory of one device, and their sum or what was measured."""
    parts = predict_memory(config, counts, vocab_size, microbatch_tokens, is_cuda=assumptions.is_cuda)
    state, tokens = f"{counts.total:,}", f"{microbatch_tokens:,} tokens per microbatch"
    checkpointing = "with" if config.trainer.gradient_checkpointing else "without"
    total = Derived(parts.total_mib, "estimate: state + activations + logits + runtime")
    if measured.memory_mib is not None:
        total = Derived(measured.memory_mib, f"measured: {measured.source}")
    return {
        "weights_mib": Derived(parts.weights_mib, f"{state} fp32 weights and, in bf16, their copy"),
        "gradients_mib": Derived(parts.gradients_mib, f"{state} fp32 gradients"),
        "optimizer_mib": Derived(parts.optimizer_mib, optimizer_values(config.optimizer, counts).reason),
        "activations_mib": Derived(parts.activations_mib, f"{tokens}, {checkpointing} checkpointing"),
        "logits_mib": Derived(parts.logits_mib, f"predicted positions of {tokens} x {vocab_size:,}"),
        "runtime_mib": Derived(parts.runtime_mib, "context, kernels and workspaces, assumed"),
        "memory_mib": total,
        "device_memory_mib": Derived(assumptions.device_memory_mib, assumptions.source),
    }


def predict_memory(
    config: RunConfig, counts: ParameterCount, vocab_size: int, microbatch_tokens: int, *, is_cuda: bool
) -> Memory:
    """Predict the peak of a training step on one device that holds the whole model."""
    compute_bytes = _compute_bytes(config)
    compute_copy = compute_bytes if compute_bytes < FP32_BYTES else 0
    return Memory(
        weights_mib=mib(counts.total * (FP32_BYTES + compute_copy)),
        gradients_mib=mib(counts.total * FP32_BYTES),
        optimizer_mib=mib(optimizer_values(config.optimizer, counts).value * FP32_BYTES),
        activations_mib=mib(activation_bytes(config) * microbatch_tokens),
        logits_mib=mib(_decoded_positions(config, microbatch_tokens) * vocab_size * (compute_bytes + 8)),
        runtime_mib=CUDA_RUNTIME_MIB if is_cuda else CPU_RUNTIME_MIB,
    )


def activation_bytes(config: RunConfig) -> int:
    """Return the bytes per token that the blocks keep for the backward pass.

    A recomputed block keeps its input, the residual stream in fp32; while it is recomputed, one block's whole
    set is there as well.
    """
    layers, whole = config.model.num_hidden_layers, block_bytes(config)
    if not config.trainer.gradient_checkpointing:
        return layers * whole
    recomputed = math.ceil(layers / config.trainer.gradient_checkpointing_every_n)
    return recomputed * FP32_BYTES * config.model.hidden_size + (layers - recomputed) * whole + whole


def block_bytes(config: RunConfig) -> int:
    """Return the bytes per token that one block keeps, as counted on this project's model.

    In the compute type: the inputs of the four products, qkv, the rotated q and k, and the feed-forward's
    gate, up and product; eager mode keeps the activated gate as well. In fp32: the residual stream, and in
    eager mode each step of the norms. Compiled graphs keep the whole of qkv for its v.
    """
    hidden, width = config.model.hidden_size, feed_forward_width(config.model)
    compute_bytes = _compute_bytes(config)
    gates = 3 if config.model.hidden_act == "swiglu" else 2
    if config.trainer.torch_compile:
        return compute_bytes * (10 * hidden + gates * width) + FP32_BYTES * hidden
    return compute_bytes * (9 * hidden + (gates + 1) * width) + FP32_BYTES * 4 * hidden


def _compute_bytes(config: RunConfig) -> int:
    return BF16_BYTES if config.trainer.mixed_precision == "bf16" else FP32_BYTES


def _decoded_positions(config: RunConfig, tokens: int) -> int:
    """Logits in the compute type, then in fp32, then their gradient: all three are alive at once."""
    share = config.datacollator.mlm_probability if config.trainer.masked_logits_only_loss else 1.0
    return math.ceil(tokens * share)
