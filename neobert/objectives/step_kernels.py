"""Choice of the kernels of a training step.

`neobert.kernel_table` has the requirements of each kernel; this module checks them in this process.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import import_module

import torch

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.neobert.spec import model_section
from neobert.families.table import max_row_length, requested_kernels
from neobert.kernel_table import (
    BLOCKS,
    OWN_KERNELS,
    WITH_TORCH,
    AttentionKernel,
    BlockKernel,
    Package,
    block_attention,
)
from neobert.model.backends import (
    BackendError,
    ChosenKernel,
    check_liger,
    choose_backend,
    current_environment,
    import_kernel,
    package_import_error,
)
from neobert.plan.kernels import block_obstacle


@dataclass(frozen=True, slots=True)
class StepKernels:
    """Kernels of a training step, and the reason for the choice.

    Attributes:
        name: torch or liger (modules of the model), or triton or fused (replace its blocks in training).
        attention: attention kernel of a training step.
        model_attention: attention kernel of the model's own forward for packed rows.
    """

    name: str
    attention: str
    model_attention: str
    reason: str

    @property
    def replaces_blocks(self) -> bool:
        """Return whether this project's kernels (triton, fused) replace the model's blocks in training."""
        return self.name in OWN_KERNELS

    @property
    def modules(self) -> str:
        """Return the norm and activation kernels of the model's own modules: torch or liger."""
        return "torch" if self.replaces_blocks else self.name


def resolve_step_kernels(config: RunConfig, device_type: str, dtype: torch.dtype) -> StepKernels:
    """Choose the kernels of a run for a device type ("cpu" or "cuda") and compute dtype.

    Raises `ProjectError` ATT001 if a kernel that the config names cannot run, instead of falling back.
    """
    requested, _ = requested_kernels(config)
    packed = _resolve_attention(config, device_type, dtype)
    reasons: list[str] = []
    for name in OWN_KERNELS if requested == "auto" else {requested} & {*OWN_KERNELS}:
        error = block_error(name, config, device_type, dtype)
        if error is None:
            reason = "; ".join(["auto: supported here" if requested == "auto" else "as configured", *reasons])
            return _replaced_block_kernels(name, config, packed.name, reason)
        if requested != "auto":
            raise _backend_config_error(error, "model.kernel_backend")
        reasons.append(error.message)
    modules = choose_module_kernels(requested, device_type, dtype, is_compiled=config.trainer.torch_compile)
    attention = packed if config.datacollator.pack_sequences else ChosenKernel("sdpa", "padded rows")
    reason = "; ".join([f"kernels {modules.reason}", *reasons, f"attention {attention.reason}"])
    return StepKernels(modules.name, attention.name, packed.name, reason)


def set_torch_kernels(config: RunConfig, device_type: str) -> None:
    """Set process-wide options of torch: matrix products and attention on a GPU; determinism on a CPU."""
    if device_type == "cuda":
        torch.set_float32_matmul_precision("high" if config.trainer.tf32 else "highest")
        # Padded rows vary in width. For each width, cuDNN's attention builds a plan in 0.1 to 2.8 s (H100);
        # then it is as fast as memory-efficient attention, the next choice of torch.
        torch.backends.cuda.enable_cudnn_sdp(config.datacollator.pack_sequences)
    else:
        torch.use_deterministic_algorithms(True)


def _resolve_attention(config: RunConfig, device_type: str, dtype: torch.dtype) -> ChosenKernel:
    model = model_section(config)
    head_size = model.hidden_size // model.num_attention_heads
    environment = current_environment(device_type, dtype, head_size, row_length=max_row_length(config))
    try:
        return choose_backend(model.attn_backend, environment)
    except BackendError as error:
        raise _backend_config_error(error, "model.attn_backend") from error


def choose_module_kernels(
    requested: str, device_type: str, dtype: torch.dtype, *, is_compiled: bool
) -> ChosenKernel:
    """Choose the norm and activation kernels of the model's own modules, liger or torch.

    With torch.compile, auto does not select liger: on an H200 a compiled step took 142 ms with liger, 124 ms
    without. Raises `ProjectError` ATT001 if `requested` is liger and it cannot run.
    """
    if requested == "torch":
        return ChosenKernel("torch", "as configured")
    if requested == "auto" and is_compiled and not BLOCKS["liger"].compiles:
        return ChosenKernel(
            "torch", "auto: torch.compile fuses norms and activations, which liger would prevent"
        )
    try:
        check_liger(device_type, dtype)
    except BackendError as error:
        if requested == "liger":
            raise _backend_config_error(error, "model.kernel_backend") from error
        return ChosenKernel("torch", f"auto: {error.message}")
    chosen = "as configured" if requested == "liger" else "auto"
    return ChosenKernel("liger", f"{chosen}: liger is installed and supports {device_type}")


def _backend_config_error(error: BackendError, key: str) -> ProjectError:
    return ProjectError("ATT001", error.message, error.hint, place=key)


def _replaced_block_kernels(name: str, config: RunConfig, model_attention: str, reason: str) -> StepKernels:
    attention = choose_block_attention(max_row_length(config))
    why = f"attention {attention.name}: {attention.reason}"
    return StepKernels(name, attention.name, model_attention, f"{reason}; {why}")


def choose_block_attention(row_length: int) -> ChosenKernel:
    """Choose the attention kernel for triton or fused blocks and rows of `row_length` tokens."""
    reasons = [f"rows of {row_length} tokens"]
    for kernel in block_attention(row_length):
        error = block_attention_error(kernel)
        if error is None:
            return ChosenKernel(kernel.name, "; ".join(reasons))
        reasons.append(error.message)
    raise AssertionError("no attention kernel runs in the chosen blocks")


def block_attention_error(kernel: AttentionKernel) -> BackendError | None:
    """Return the error that prevents an attention kernel in triton or fused blocks, or None."""
    environment = current_environment("cuda", torch.bfloat16, BLOCKS[OWN_KERNELS[0]].largest_head)
    obstacle = kernel.obstacle(environment, _is_missing)
    if obstacle is not None:
        return BackendError(*obstacle)
    try:
        # An optional package can be installed but fail to import, for example after an update of torch.
        if kernel.packages[0] not in WITH_TORCH:
            import_kernel(kernel)
    except BackendError as error:
        return error
    return None


def block_error(name: str, config: RunConfig, device_type: str, dtype: torch.dtype) -> BackendError | None:
    """Return the error that prevents the block kernels `name` (triton, fused) for this config, or None."""
    obstacle = block_obstacle(BLOCKS[name], config, current_environment(device_type, dtype), _is_missing)
    return _import_error(BLOCKS[name]) if obstacle is None else BackendError(*obstacle)


def _import_error(kernel: BlockKernel) -> BackendError | None:
    """Return the error of importing a kernel's programs, or None. An installed package can fail to import."""
    if not kernel.programs:
        return None
    try:
        import_module(kernel.programs)
    except Exception as error:
        return package_import_error(kernel, kernel.packages[-1], f"{kernel.KEY} to auto", error)
    return None


def _is_missing(package: Package) -> bool:
    return importlib.util.find_spec(package.module.partition(".")[0]) is None
