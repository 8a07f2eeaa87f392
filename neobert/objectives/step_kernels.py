"""Which kernels run a training step: the one place that decides it, once and with a reason.

The blocks run on the model's own modules, or on this project's kernels. What each attention kernel needs
stands in `neobert.model.backends`, which travels with the weights.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.neobert.spec import feed_forward_width
from neobert.install_hints import INSTALL
from neobert.kernels.fused_block import why_not
from neobert.model.backends import (
    Backend,
    BackendError,
    check_kernel,
    check_liger,
    choose_backend,
    this_place,
)
from neobert.plan.kernels import HEAD_SIZE, LONG_ROWS, OWN_KERNELS, obstacle_to_own_kernels

HINTS = {
    "fused": f"{INSTALL['fused']} on a Hopper card, or set model.kernel_backend to auto",
    "triton": "set model.kernel_backend to auto, torch or liger",
}


@dataclass(frozen=True, slots=True)
class StepKernels:
    """What runs the blocks, and why.

    Attributes:
        name: torch and liger are modules of the model; triton and fused replace its blocks in training.
        attention: the attention kernel of a training step.
        model_attention: the one that the model's own forward takes over packed documents.
    """

    name: str
    attention: str
    model_attention: str
    reason: str

    @property
    def replace_blocks(self) -> bool:
        """Whether the blocks run on this project's kernels."""
        return self.name in OWN_KERNELS

    @property
    def modules(self) -> str:
        """Name the norm and activation kernels of the model's own modules."""
        return "torch" if self.replace_blocks else self.name


def resolve_step_kernels(config: RunConfig, device_type: str, dtype: torch.dtype) -> StepKernels:
    """Choose for this device ("cpu", "cuda") and compute type. Nothing else chooses for a run.

    Raises `ProjectError` ATT001 where what was named cannot run; nothing is swapped silently.
    """
    requested = config.model.kernel_backend
    packed = _resolve_attention(config, device_type, dtype)
    if requested in OWN_KERNELS:
        obstacle = obstacle_to(requested, config, device_type, dtype)
        if obstacle:
            message = f"kernel_backend {requested} cannot run this: {obstacle}"
            raise ProjectError("ATT001", message, HINTS[requested], "model.kernel_backend")
        return _own_kernels(requested, config, packed.name, "asked for")
    reasons: list[str] = []
    for name in OWN_KERNELS if requested == "auto" else ():
        obstacle = obstacle_to(name, config, device_type, dtype)
        if not obstacle:
            return _own_kernels(name, config, packed.name, "; ".join(["auto: it runs here", *reasons]))
        reasons.append(f"not {name}: {obstacle}")
    modules = resolve_modules(requested, device_type, config.trainer.torch_compile)
    attention = packed if config.datacollator.pack_sequences else Backend("sdpa", "padded rows")
    reason = "; ".join([f"kernels {modules.reason}", *reasons, f"attention {attention.reason}"])
    return StepKernels(modules.name, attention.name, packed.name, reason)


def _resolve_attention(config: RunConfig, device_type: str, dtype: torch.dtype) -> Backend:
    """Name the kernel for packed runs of the model's own modules, and why."""
    model = config.model
    place = this_place(device_type, dtype, model.hidden_size // model.num_attention_heads)
    try:
        return choose_backend(model.attn_backend, place)
    except BackendError as error:
        raise _refusal(error, "model.attn_backend") from error


def resolve_modules(requested: str, device_type: str, is_compiled: bool) -> Backend:
    """Name the norm and activation kernels of the model's own modules, liger or torch, and why.

    Under torch.compile auto leaves liger out: on an H200 a compiled step took 142 ms with it, 124 without.
    """
    if requested == "torch":
        return Backend("torch", "asked for")
    if requested == "auto" and is_compiled:
        return Backend("torch", "auto: torch.compile fuses norms and activations, and liger's would stop it")
    try:
        check_liger(device_type)
    except BackendError as error:
        if requested == "liger":
            raise _refusal(error, "model.kernel_backend") from error
        return Backend("torch", f"auto: {error.message}")
    asked = "asked for" if requested == "liger" else "auto"
    return Backend("liger", f"{asked}: it imports, on {device_type}")


def _refusal(error: BackendError, key: str) -> ProjectError:
    return ProjectError("ATT001", error.message, error.hint, place=key)


def _own_kernels(name: str, config: RunConfig, model_attention: str, reason: str) -> StepKernels:
    attention, why = _own_attention(config.datacollator.max_length or config.dataset.max_seq_length)
    return StepKernels(name, attention, model_attention, f"{reason}; attention {attention}: {why}")


def _own_attention(row_length: int) -> tuple[str, str]:
    """Name the attention of this project's blocks, and why."""
    if row_length <= LONG_ROWS:
        return "triton_packed", f"rows of {row_length}, and no more than {LONG_ROWS}"
    obstacle = obstacle_to_flash4()
    if obstacle:
        return "triton_packed", f"rows of {row_length}, and not flash_attn_4: {obstacle}"
    return "flash_attn_4", f"rows of {row_length}"


def obstacle_to_flash4() -> str:
    """Say what keeps FlashAttention 4 from running in this project's blocks; empty where nothing does."""
    try:
        check_kernel("flash_attn_4", this_place("cuda", torch.bfloat16, HEAD_SIZE))
    except BackendError as error:
        return error.message
    return ""


def obstacle_to(name: str, config: RunConfig, device_type: str, dtype: torch.dtype) -> str:
    """Say what keeps these kernels from running; empty where nothing does."""
    obstacle = obstacle_to_own_kernels(config)
    if obstacle:
        return obstacle
    if device_type != "cuda":
        return f"it needs a CUDA device, and this is {device_type}"
    if dtype != torch.bfloat16:
        return f"it computes in bf16, and this is {str(dtype).removeprefix('torch.')}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if name == "triton":
        return ""
    model = config.model
    width = feed_forward_width(model)
    return why_not(model.hidden_size, model.num_attention_heads, width, dtype) or ""
