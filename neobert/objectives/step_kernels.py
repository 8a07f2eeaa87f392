"""Which kernels run a training step, resolved once with a reason: torch's modules, or this project's own."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.kernels import flash4
from neobert.kernels.fused_block import why_not
from neobert.model import resolve_attention_backend, resolve_kernel_backend
from neobert.plan import feed_forward_width
from neobert.plan.kernels import OWN_KERNELS, obstacle_to_own_kernels

LONG_ROWS = 2048
"""Rows longer than this go to FlashAttention 4 where it is installed; shorter ones are faster here."""

FLASH4_CAPABILITY = 9

HINTS = {
    "fused": "pip install 'neobert-launch[fused]' on a Hopper card, or set model.kernel_backend to auto",
    "triton": "set model.kernel_backend to auto, torch or liger",
}


@dataclass(frozen=True, slots=True)
class StepKernels:
    """What runs the blocks, and why.

    Attributes:
        name: torch and liger are modules of the model; triton and fused replace its blocks in training.
        attention: the attention kernel of a training step.
        model_attention: the one that the model's own forward takes, as in an evaluation by torch.
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
    """Choose for this device ("cpu", "cuda") and compute type.

    Raises `ProjectError` ATT001 where what was named cannot run; nothing is swapped silently.
    """
    requested, attention = config.model.kernel_backend, config.model.attn_backend
    own = resolve_attention_backend(attention, device_type, dtype)
    if requested in OWN_KERNELS:
        obstacle = obstacle_to(requested, config, device_type, dtype)
        if obstacle:
            message = f"kernel_backend {requested} cannot run this: {obstacle}"
            raise ProjectError("ATT001", message, HINTS[requested], "model.kernel_backend")
        return _own_kernels(requested, config, own.name, "asked for")
    reasons: list[str] = []
    for name in OWN_KERNELS if requested == "auto" else ():
        obstacle = obstacle_to(name, config, device_type, dtype)
        if not obstacle:
            return _own_kernels(name, config, own.name, "; ".join(["auto: it runs here", *reasons]))
        reasons.append(f"not {name}: {obstacle}")
    modules = resolve_kernel_backend(requested, device_type, config.trainer.torch_compile)
    reason = "; ".join([f"kernels {modules.reason}", *reasons, f"attention {own.reason}"])
    return StepKernels(modules.name, own.name, own.name, reason)


def _own_kernels(name: str, config: RunConfig, model_attention: str, reason: str) -> StepKernels:
    length = config.datacollator.max_length or config.dataset.max_seq_length
    attention = "flash_attn_4" if length > LONG_ROWS and flash4_runs() else "triton_packed"
    rows = f"attention {attention}: rows of {length}"
    return StepKernels(name, attention, model_attention, f"{reason}; {rows}")


def flash4_runs() -> bool:
    """Tell whether FlashAttention 4 is installed, on a card that it is made for."""
    return flash4.is_installed() and torch.cuda.get_device_capability()[0] >= FLASH4_CAPABILITY


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
