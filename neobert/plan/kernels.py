"""Which kernels a config will run on, as far as that can be said without the machine and its packages."""

from __future__ import annotations

from neobert.config.schema import ModelConfig, RunConfig
from neobert.plan.derived import Derived, Values
from neobert.plan.hardware import Assumptions

OWN_KERNELS = ("fused", "triton")
"""Values of `model.kernel_backend`, the fastest first; the others leave the blocks to the model's modules."""

HEAD_SIZE = 64
HOPPER_CARDS = ("H100", "H200")
FLASH4_CARDS = (*HOPPER_CARDS, "B200")

LONG_ROWS = 2048
"""Own kernels: rows longer than this go to FlashAttention 4 where it is; shorter ones are faster without."""

VARLEN_LIMITS = {
    "flash_attn_4": (9, 10, 128),
    "flash_attn_3": (9, 9, 256),
    "flash_attn_2": (8, 12, 256),
    "torch_varlen": (8, 12, 256),
}
"""Major compute capabilities from and to, and the largest head, as in `neobert.model.backends`."""


def exchange_overlaps(kernels: str) -> bool:
    """Whether ranks exchange beside a step: products of `fused` wait for multiprocessors that NCCL holds."""
    return kernels != "fused"


def plan_kernels(config: RunConfig, assumptions: Assumptions) -> Values:
    """Derive the kernels of the blocks and of their attention, taking for granted what the extras install."""
    kernels = _kernels(config, assumptions)
    return {"kernels": kernels, "attention": _attention(config, assumptions, kernels.value)}


def _kernels(config: RunConfig, assumptions: Assumptions) -> Derived[str]:
    named = config.model.kernel_backend
    if named != "auto":
        return Derived(named, "model.kernel_backend as given")
    obstacle = obstacle_to_own_kernels(config) or _obstacle_of_device(config, assumptions)
    if obstacle:
        return Derived("torch", f"auto, and not triton: {obstacle}")
    if assumptions.device_name in HOPPER_CARDS:
        return Derived("fused", f"auto on {assumptions.device_name}; triton where quack-kernels is missing")
    return Derived("triton", f"auto on {assumptions.device_name}; fused is made for Hopper")


def _attention(config: RunConfig, assumptions: Assumptions, kernels: str) -> Derived[str]:
    length = config.datacollator.max_length or config.dataset.max_seq_length
    if kernels in OWN_KERNELS:
        if length > LONG_ROWS and assumptions.device_name in FLASH4_CARDS:
            return Derived("flash_attn_4", f"rows of {length}; triton_packed where flash-attn-4 is missing")
        return Derived("triton_packed", f"this project's, with {kernels} kernels and rows of {length}")
    if not config.datacollator.pack_sequences:
        return Derived("sdpa", "padded rows go through it, whatever model.attn_backend names")
    named = config.model.attn_backend
    if named != "auto":
        return Derived(named, "model.attn_backend as given")
    obstacle = _obstacle_of_device(config, assumptions)
    if obstacle:
        return Derived("sdpa", f"auto: {obstacle}")
    return Derived("torch_varlen", "auto: torch's own; FlashAttention 4, 3 or 2 where one is installed")


def _obstacle_of_device(config: RunConfig, assumptions: Assumptions) -> str:
    if not assumptions.is_cuda:
        return "it needs a CUDA device, and this is a CPU"
    precision = config.trainer.mixed_precision
    return "" if precision == "bf16" else f"it computes in bf16, and this is {precision}"


def obstacle_to_own_kernels(config: RunConfig) -> str:
    """Say which key asks for what these kernels do not do; empty where none does."""
    model = config.model
    wanted = (
        ("model.attn_backend", model.attn_backend, "auto"),
        ("datacollator.pack_sequences", config.datacollator.pack_sequences, True),
        ("trainer.masked_logits_only_loss", config.trainer.masked_logits_only_loss, True),
        ("trainer.gradient_checkpointing", config.trainer.gradient_checkpointing, False),
        ("model.rope", model.rope, True),
        ("model.rms_norm", model.rms_norm, True),
        ("model.hidden_act", model.hidden_act, "swiglu"),
    )
    for key, value, needed in wanted:
        if value != needed:
            return f"it needs {key}: {_yaml(needed)}, and this is {_yaml(value)}"
    return _obstacle_in_heads(model)


def _obstacle_in_heads(model: ModelConfig) -> str:
    size = model.hidden_size / model.num_attention_heads
    return "" if size == HEAD_SIZE else f"it is written for heads of {HEAD_SIZE}, and these are {size:g}"


def _yaml(value: object) -> str:
    return str(value).lower()
