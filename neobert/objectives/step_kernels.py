"""Which kernels run a training step: the one place that decides it, once and with a reason.

The blocks run on the model's own modules, or on this project's kernels. What each attention kernel needs
stands in `neobert.model.backends`, which travels with the weights.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from neobert.config.schema import ModelConfig, RunConfig
from neobert.errors import ProjectError
from neobert.kernels import flash4
from neobert.kernels.fused_block import why_not
from neobert.model.backends import Backend, BackendError, choose_backend, choose_kernels, this_place
from neobert.plan import feed_forward_width
from neobert.plan.kernels import LONG_ROWS, OWN_KERNELS, obstacle_to_own_kernels

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
    """Choose for this device ("cpu", "cuda") and compute type. Nothing else chooses for a run.

    Raises `ProjectError` ATT001 where what was named cannot run; nothing is swapped silently.
    """
    requested = config.model.kernel_backend
    model_attention = resolve_attention(config.model, device_type, dtype)
    if requested in OWN_KERNELS:
        obstacle = obstacle_to(requested, config, device_type, dtype)
        if obstacle:
            message = f"kernel_backend {requested} cannot run this: {obstacle}"
            raise ProjectError("ATT001", message, HINTS[requested], "model.kernel_backend")
        return _own_kernels(requested, config, model_attention.name, "asked for")
    reasons: list[str] = []
    for name in OWN_KERNELS if requested == "auto" else ():
        obstacle = obstacle_to(name, config, device_type, dtype)
        if not obstacle:
            reason = "; ".join(["auto: it runs here", *reasons])
            return _own_kernels(name, config, model_attention.name, reason)
        reasons.append(f"not {name}: {obstacle}")
    modules = resolve_modules(requested, device_type, config.trainer.torch_compile)
    reason = "; ".join([f"kernels {modules.reason}", *reasons, f"attention {model_attention.reason}"])
    return StepKernels(modules.name, model_attention.name, model_attention.name, reason)


def resolve_attention(model: ModelConfig, device_type: str, dtype: torch.dtype) -> Backend:
    """Name the kernel for packed runs of the model's own modules, and why."""
    place = this_place(device_type, dtype, model.hidden_size // model.num_attention_heads)
    with _refusals_at("model.attn_backend"):
        return choose_backend(model.attn_backend, place)


def resolve_modules(requested: str, device_type: str, is_compiled: bool) -> Backend:
    """Name the norm and activation kernels of the model's own modules, and why.

    Under torch.compile auto leaves liger out: on an H200 a compiled step took 142 ms with it, 124 without.
    """
    with _refusals_at("model.kernel_backend"):
        return choose_kernels(requested, device_type, is_compiled)


@contextmanager
def _refusals_at(key: str) -> Iterator[None]:
    try:
        yield
    except BackendError as error:
        raise ProjectError("ATT001", error.message, error.hint, place=key) from error


def _own_kernels(name: str, config: RunConfig, model_attention: str, reason: str) -> StepKernels:
    length = config.datacollator.max_length or config.dataset.max_seq_length
    attention, why = "triton_packed", f"rows of {length}, and no more than {LONG_ROWS}"
    if length > LONG_ROWS:
        runs = flash4_runs()
        attention = "flash_attn_4" if runs else attention
        why = f"rows of {length}" if runs else f"rows of {length}, and flash-attn-4 does not run here"
    return StepKernels(name, attention, model_attention, f"{reason}; attention {attention}: {why}")


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
