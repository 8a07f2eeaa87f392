"""Choice and import of the attention kernel for packed input. Copied into every checkpoint.

`kernel_table` lists what each kernel needs; this module checks what this process has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch

from .kernel_table import (
    ATTENTION,
    ATTENTION_CHOICES,
    BLOCKS,
    AttentionKernel,
    Environment,
    Feature,
    Gpu,
    Kernel,
    Package,
    find_attention_kernels,
    install_line,
)

HALF_TYPES = (torch.bfloat16, torch.float16)


class BackendError(ValueError):
    """Error for a kernel that cannot run here. `hint` is the edit or command that fixes it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}: {hint}")
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class ChosenKernel:
    """A kernel's name, and the reason why it was chosen."""

    name: str
    reason: str


def current_environment(
    device_type: str,
    dtype: torch.dtype,
    head_size: float | None = None,
    features: tuple[Feature, ...] = (),
    row_length: int | None = None,
) -> Environment:
    """Describe this process's device ("cuda" or "cpu"), the compute type, and the model's attention.

    `head_size` in channels; `features` that the attention needs of its kernel; `row_length` in tokens.
    """
    gpus: tuple[Gpu, ...] = ()
    if device_type == "cuda" and torch.cuda.is_available():
        gpus = (Gpu("this GPU", torch.cuda.get_device_capability()),)
    return Environment(device_type, str(dtype).removeprefix("torch."), head_size, gpus, features, row_length)


def choose_backend(requested: str, environment: Environment) -> ChosenKernel:
    """Choose the kernel for packed rows; raise `BackendError` if the requested one cannot run.

    `flash_attn_varlen` selects the newest FlashAttention that is installed and runs here. `auto` tries the
    same, for short rows after triton_packed, then torch's own varlen kernel, for soft caps flex, then SDPA.
    """
    kernels = find_attention_kernels(requested, environment.features, environment.row_length)
    if not kernels:
        raise BackendError(
            f"attn_backend {requested!r} does not exist", f"use {', '.join(ATTENTION_CHOICES)}"
        )
    errors: list[BackendError] = []
    for kernel in kernels:
        try:
            check_kernel(kernel, environment)
        except BackendError as error:
            errors.append(error)
        else:
            return ChosenKernel(
                kernel.name, "; ".join([f"{requested}: supported here", *_error_messages(errors)])
            )
    if requested != "auto":
        raise BackendError("; ".join(_error_messages(errors)), errors[-1].hint)
    check_kernel(ATTENTION["sdpa"], environment)
    return ChosenKernel("sdpa", "; ".join(["auto: one SDPA call per segment", *_error_messages(errors)]))


def _error_messages(errors: list[BackendError]) -> list[str]:
    return [error.message for error in errors]


def check_kernel(kernel: AttentionKernel, environment: Environment) -> None:
    """Raise `BackendError` unless the kernel supports device, dtype and head size, and can be imported."""
    _raise_if_unsupported(kernel, environment)
    import_kernel(kernel)


def _raise_if_unsupported(kernel: Kernel, environment: Environment) -> None:
    obstacle = kernel.obstacle(environment)
    if obstacle is not None:
        raise BackendError(*obstacle)


def package_import_error(kernel: Kernel, package: Package, instead: str, error: Exception) -> BackendError:
    """Return the error for a package that cannot be imported. Compilers of kernels raise errors of any type.

    `instead`: the key to set, and its value.
    """
    reason = str(error).partition("\n")[0] or type(error).__name__
    message = f"{kernel.name} needs {package.name}, which cannot be imported ({reason})"
    return BackendError(message, f"{install_line(package)}, or set {instead}")


def import_kernel(kernel: AttentionKernel) -> Callable[..., Any]:
    """Import a kernel's function, or raise `BackendError`.

    The kernel's package is imported first, because a wrapper module of this folder also imports without it.
    """
    module, _, name = kernel.loader.partition(":")
    try:
        # flex also runs uncompiled, without Triton: on a CPU, and in a graph of another compiler.
        for package in kernel.packages if kernel.program != "compiled" else ():
            import_module(package.module)
        function = getattr(import_module(module, __package__), name)
    except Exception as error:
        if not kernel.packages:  # a module of this project
            raise
        raise package_import_error(kernel, kernel.packages[0], "attn_backend to auto", error) from error
    # Releases differ in their later arguments, so only the first ones are given, by position.
    names = tuple(inspect.signature(function).parameters)[: len(kernel.arguments)]
    if kernel.arguments and names != kernel.arguments:
        raise BackendError(
            f"{kernel.name} of this release takes the arguments {', '.join(names)}, which are not supported",
            "set attn_backend to another kernel",
        )
    return function


LOADED: dict[str, Callable[..., Any]] = {}
"""Functions of the kernels that were loaded, by name."""


# A compiler that traces this would follow the imports; as a constant it runs while the graph is traced.
@torch.compiler.assume_constant_result
def load_attention(name: str) -> bool:
    """Load a kernel's function into `LOADED`; return whether it has the varlen signature.

    Raises `BackendError` if the function cannot be imported.
    """
    LOADED[name] = import_kernel(ATTENTION[name])
    return ATTENTION[name].is_varlen


def check_tensors(name: str, device_type: str, dtype: torch.dtype, head_size: int | None = None) -> None:
    """Raise `BackendError` if the kernel does not support tensors of this device, dtype and head size."""
    _raise_if_unsupported(ATTENTION[name], current_environment(device_type, dtype, head_size))


class LigerFunctions(NamedTuple):
    """Autograd functions of Liger that the blocks use."""

    rms_norm: Any
    silu_mul: Any


def load_liger() -> LigerFunctions:
    """Import Liger's functions, or raise `BackendError`."""
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except Exception as error:
        liger = BLOCKS["liger"]
        raise package_import_error(liger, liger.packages[0], "kernel_backend to torch", error) from error
    return LigerFunctions(LigerRMSNormFunction, LigerSiLUMulFunction)


def check_liger(device_type: str, dtype: torch.dtype) -> None:
    """Raise `BackendError` unless liger's norm and activation run on this device."""
    _raise_if_unsupported(BLOCKS["liger"], current_environment(device_type, dtype))
    load_liger()
