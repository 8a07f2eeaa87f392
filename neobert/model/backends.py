"""Which kernels run, and why: attention over packed input, norm, activation. Copied into every checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

HALF_TYPES = (torch.bfloat16, torch.float16)
VARLEN_KERNELS = ("flash_attn_varlen", "torch_varlen")  # the order in which auto tries them
VARLEN_ARGUMENTS = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")


class BackendError(ValueError):
    """An attention or kernel backend that cannot run here. `hint` says what would make it run."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message} {hint}")
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Backend:
    """A kernel's name, and why it was taken."""

    name: str
    reason: str


def choose_backend(requested: str, device_type: str, dtype: torch.dtype) -> Backend:
    """Take the kernel for packed runs; raise `BackendError` where the one that was named cannot run."""
    if requested == "sdpa":
        return Backend("sdpa", "asked for; one SDPA call a segment")
    if requested in VARLEN_KERNELS:
        check_varlen(requested, device_type, dtype)
        load_varlen_kernel(requested)
        return Backend(requested, f"asked for, and it runs on {device_type} in {_short(dtype)}")
    if requested != "auto":
        raise BackendError(f"There is no attn_backend {requested!r}.", "Use auto, sdpa or a varlen kernel.")
    return _first_that_runs(device_type, dtype)


def _first_that_runs(device_type: str, dtype: torch.dtype) -> Backend:
    reasons = []
    for name in VARLEN_KERNELS:
        try:
            choose_backend(name, device_type, dtype)
        except BackendError as error:
            reasons.append(error.message)
        else:
            return Backend(name, " ".join(["auto: it runs here.", *reasons]))
    return Backend("sdpa", " ".join(["auto:", *reasons]))


def check_varlen(backend: str, device_type: str, dtype: torch.dtype) -> None:
    """Raise `BackendError` unless device and compute type are what the varlen kernels take."""
    if device_type != "cuda":
        raise BackendError(
            f"{backend} needs a CUDA device, and this is {device_type}.",
            "Use attn_backend sdpa or auto there.",
        )
    if dtype not in HALF_TYPES:
        raise BackendError(
            f"{backend} computes in bf16 or fp16, and this is {_short(dtype)}.",
            "Use mixed_precision bf16, or attn_backend sdpa.",
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def load_varlen_kernel(name: str) -> Callable[..., Any]:
    """Import a kernel that is called as (q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)."""
    return _load_flash_attn() if name == "flash_attn_varlen" else _load_torch_varlen()


def _load_flash_attn() -> Callable[..., Any]:
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError as error:
        raise BackendError(
            f"flash_attn_varlen needs the package flash-attn, which does not import ({error}).",
            "pip install 'neobert-launch[flash]', or use attn_backend torch_varlen.",
        ) from error
    return flash_attn_varlen_func  # type: ignore[no-any-return]


def _load_torch_varlen() -> Callable[..., Any]:
    """Find torch's own kernel. Releases differ in its later arguments, so only the first seven are used."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise BackendError(
            f"torch {torch.__version__} has no torch.nn.attention.varlen.", "It came with torch 2.10."
        ) from error
    if tuple(inspect.signature(varlen_attn).parameters)[:7] != VARLEN_ARGUMENTS:
        raise BackendError(
            f"varlen_attn of torch {torch.__version__} takes arguments that this version does not know.",
            "Use attn_backend flash_attn_varlen or sdpa.",
        )
    return varlen_attn


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
