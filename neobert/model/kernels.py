"""Liger's norm and activation, where they are asked for and can run. Copied into every checkpoint folder."""

from __future__ import annotations

from typing import Any, NamedTuple

from .backends import Backend, BackendError


class LigerFunctions(NamedTuple):
    """The two autograd functions that the blocks use."""

    rms_norm: Any
    silu_mul: Any


def load_liger() -> LigerFunctions:
    """Import the functions, or raise `BackendError`."""
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError as error:
        raise BackendError(
            f"kernel_backend liger needs the package liger-kernel, which does not import ({error}).",
            "pip install 'neobert-launch[liger]', or use kernel_backend torch.",
        ) from error
    return LigerFunctions(LigerRMSNormFunction, LigerSiLUMulFunction)


def choose_kernels(requested: str, device_type: str, is_compiled: bool = False) -> Backend:
    """Take liger or torch; raise `BackendError` where liger is named and cannot run."""
    if requested == "torch":
        return Backend("torch", "asked for")
    if requested == "auto" and is_compiled:
        return Backend("torch", "auto: torch.compile fuses norms and activations, and liger's would stop it")
    try:
        if device_type != "cuda":
            raise BackendError(
                f"kernel_backend liger needs a CUDA device, and this is {device_type}.",
                "Use kernel_backend torch or auto there.",
            )
        load_liger()
    except BackendError as error:
        if requested == "liger":
            raise
        return Backend("torch", f"auto: {error.message}")
    return Backend(
        "liger", f"{'asked for' if requested == 'liger' else 'auto'}: it imports, on {device_type}"
    )
