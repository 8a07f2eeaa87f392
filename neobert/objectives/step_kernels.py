"""Choice of the kernels of a training step, once per run, with the reason.

`neobert.kernel_table` lists what each kernel needs; this module checks what this process has.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.neobert.spec import section_of
from neobert.families.table import longest_row
from neobert.kernel_table import BLOCKS, OWN_KERNELS, AttentionKernel, Package, block_attention
from neobert.model.backends import (
    Backend,
    BackendError,
    check_liger,
    choose_backend,
    import_kernel,
    this_environment,
)
from neobert.plan.kernels import block_obstacle


@dataclass(frozen=True, slots=True)
class StepKernels:
    """Kernels of a training step, with the reason.

    Attributes:
        name: torch and liger are modules of the model; triton and fused replace its blocks in training.
        attention: the attention kernel of a training step.
        model_attention: the kernel of the model's own forward over packed documents.
    """

    name: str
    attention: str
    model_attention: str
    reason: str

    @property
    def replace_blocks(self) -> bool:
        """Return whether the blocks run on this project's kernels."""
        return self.name in OWN_KERNELS

    @property
    def modules(self) -> str:
        """Return the name of the norm and activation kernels of the model's own modules."""
        return "torch" if self.replace_blocks else self.name


def resolve_step_kernels(config: RunConfig, device_type: str, dtype: torch.dtype) -> StepKernels:
    """Choose the kernels of a run for this device ("cpu", "cuda") and compute type.

    Raises `ProjectError` ATT001 if a kernel that the config names cannot run; no other is taken instead.
    """
    requested = section_of(config).kernel_backend
    packed = _resolve_attention(config, device_type, dtype)
    reasons: list[str] = []
    for name in OWN_KERNELS if requested == "auto" else {requested} & {*OWN_KERNELS}:
        error = block_error(name, config, device_type, dtype)
        if error is None:
            reason = "; ".join(["auto: supported here" if requested == "auto" else "as configured", *reasons])
            return _own_kernels(name, config, packed.name, reason)
        if requested != "auto":
            raise _refusal(error, "model.kernel_backend")
        reasons.append(error.message)
    modules = resolve_modules(requested, device_type, dtype, is_compiled=config.trainer.torch_compile)
    attention = packed if config.datacollator.pack_sequences else Backend("sdpa", "padded rows")
    reason = "; ".join([f"kernels {modules.reason}", *reasons, f"attention {attention.reason}"])
    return StepKernels(modules.name, attention.name, packed.name, reason)


def _resolve_attention(config: RunConfig, device_type: str, dtype: torch.dtype) -> Backend:
    """Choose the kernel for packed runs of the model's own modules."""
    model = section_of(config)
    environment = this_environment(device_type, dtype, model.hidden_size // model.num_attention_heads)
    try:
        return choose_backend(model.attn_backend, environment)
    except BackendError as error:
        raise _refusal(error, "model.attn_backend") from error


def resolve_modules(requested: str, device_type: str, dtype: torch.dtype, *, is_compiled: bool) -> Backend:
    """Choose the norm and activation kernels of the model's own modules, liger or torch.

    Under torch.compile, auto does not select liger: on an H200 a compiled step took 142 ms with it, 124
    without.
    """
    if requested == "torch":
        return Backend("torch", "as configured")
    if requested == "auto" and is_compiled and not BLOCKS["liger"].compiles:
        return Backend("torch", "auto: torch.compile fuses norms and activations, and liger's would stop it")
    try:
        check_liger(device_type, dtype)
    except BackendError as error:
        if requested == "liger":
            raise _refusal(error, "model.kernel_backend") from error
        return Backend("torch", f"auto: {error.message}")
    chosen = "as configured" if requested == "liger" else "auto"
    return Backend("liger", f"{chosen}: liger is installed and supports {device_type}")


def _refusal(error: BackendError, key: str) -> ProjectError:
    return ProjectError("ATT001", error.message, error.hint, place=key)


def _own_kernels(name: str, config: RunConfig, model_attention: str, reason: str) -> StepKernels:
    attention = choose_block_attention(longest_row(config))
    why = f"attention {attention.name}: {attention.reason}"
    return StepKernels(name, attention.name, model_attention, f"{reason}; {why}")


def choose_block_attention(row_length: int) -> Backend:
    """Choose the attention kernel of this project's blocks for rows of `row_length` tokens."""
    reasons = [f"rows of {row_length} tokens"]
    for kernel in block_attention(row_length):
        error = block_attention_error(kernel)
        if error is None:
            return Backend(kernel.name, "; ".join(reasons))
        reasons.append(error.message)
    raise AssertionError("no attention kernel runs in the chosen blocks")


def block_attention_error(kernel: AttentionKernel) -> BackendError | None:
    """Return why an attention kernel cannot run in this project's blocks, or None."""
    environment = this_environment("cuda", torch.bfloat16, BLOCKS[OWN_KERNELS[0]].largest_head)
    obstacle = kernel.obstacle(environment, _is_missing)
    if obstacle is not None:
        return BackendError(*obstacle)
    try:
        # A package can be installed and not import, for example after an update of torch.
        if kernel.loader:
            import_kernel(kernel)
    except BackendError as error:
        return error
    return None


def block_error(name: str, config: RunConfig, device_type: str, dtype: torch.dtype) -> BackendError | None:
    """Return why this project's kernels of the blocks cannot run a config here, or None."""
    obstacle = block_obstacle(BLOCKS[name], config, this_environment(device_type, dtype), _is_missing)
    return None if obstacle is None else BackendError(*obstacle)


def _is_missing(package: Package) -> bool:
    """Return whether a package is not installed; it is imported only when a kernel first runs."""
    return importlib.util.find_spec(package.module.partition(".")[0]) is None
