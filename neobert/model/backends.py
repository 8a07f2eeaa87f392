"""What each kernel needs, and which attention kernel runs over packed input. Copied into every checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

HALF_TYPES = (torch.bfloat16, torch.float16)
HEAD_MULTIPLE = 8
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


class Limits(NamedTuple):
    """What a varlen kernel runs on: major compute capabilities from and to, channels of a head."""

    first_major: int
    last_major: int
    largest_head: int


VARLEN = {
    "flash_attn_4": Limits(9, 10, 128),
    "flash_attn_3": Limits(9, 9, 256),
    "flash_attn_2": Limits(8, 12, 256),
    "torch_varlen": Limits(8, 12, 256),
}
"""All of them take CUDA, bf16 or fp16, and heads of a multiple of 8."""

FLASH = ("flash_attn_4", "flash_attn_3", "flash_attn_2")
CHOICES = {"auto": tuple(VARLEN), "flash_attn_varlen": FLASH}
"""Names that stand for several kernels, in the order in which they are tried."""


@dataclass(frozen=True)
class Place:
    """Where attention is to run: "cuda" or "cpu", the compute type, channels of a head, compute capability.

    The capability is None where there is no card to ask; it then stands in nothing's way.
    """

    device_type: str
    dtype: torch.dtype
    head_size: int = 64
    capability: tuple[int, int] | None = None


def this_place(device_type: str, dtype: torch.dtype, head_size: int) -> Place:
    """Describe this process's device."""
    has_card = device_type == "cuda" and torch.cuda.is_available()
    return Place(device_type, dtype, head_size, torch.cuda.get_device_capability() if has_card else None)


def choose_backend(requested: str, place: Place) -> Backend:
    """Take the kernel for packed runs; raise `BackendError` where what was named cannot run.

    `flash_attn_varlen` is the newest FlashAttention that is installed and legal; `auto` that, else torch's
    own varlen kernel, else SDPA.
    """
    if requested == "sdpa":
        return Backend("sdpa", "asked for; one SDPA call a segment")
    if requested not in CHOICES:
        check_kernel(requested, place)
        return Backend(requested, f"asked for, and it runs on {place.device_type} in {_short(place.dtype)}")
    errors: list[BackendError] = []
    for name in CHOICES[requested]:
        try:
            check_kernel(name, place, requested)
        except BackendError as error:
            errors.append(error)
        else:
            reasons = dict.fromkeys(error.message for error in errors)
            return Backend(name, " ".join([f"{requested}: {name} runs here.", *reasons]))
    return _sdpa_or_raise(requested, errors)


def _sdpa_or_raise(requested: str, errors: list[BackendError]) -> Backend:
    messages = list(dict.fromkeys(error.message for error in errors))
    if requested != "auto":
        raise BackendError(" ".join(messages), errors[-1].hint)
    return Backend("sdpa", " ".join(["auto: one SDPA call a segment.", *messages]))


def check_kernel(name: str, place: Place, requested: str = "") -> None:
    """Raise `BackendError` unless the kernel is legal on this device, type and head, and imports.

    requested: the name in the configuration where it stands for several kernels.
    """
    if name == "flex":
        _check_flex(place.device_type)
    elif name in VARLEN:
        check_varlen(requested if requested in CHOICES else name, place.device_type, place.dtype)
        _check_limits(name, place)
        load_varlen_kernel(name)
    else:
        known = ", ".join((*CHOICES, *VARLEN, "flex", "sdpa"))
        raise BackendError(f"There is no attn_backend {name!r}.", f"There are {known}.")


def check_varlen(backend: str, device_type: str, dtype: torch.dtype) -> None:
    """Raise `BackendError` unless device and compute type are what the varlen kernels take."""
    name = "The varlen kernels need" if backend == "auto" else f"{backend} needs"
    if device_type != "cuda":
        raise BackendError(
            f"{name} a CUDA device, and this is {device_type}.", "Use attn_backend sdpa or auto there."
        )
    if dtype not in HALF_TYPES:
        raise BackendError(
            f"{name} bf16 or fp16, and this is {_short(dtype)}.",
            "Use mixed_precision bf16, or attn_backend sdpa.",
        )


def _check_limits(name: str, place: Place) -> None:
    limits, way_out = VARLEN[name], "Use attn_backend auto, which takes what runs."
    if place.head_size % HEAD_MULTIPLE or place.head_size > limits.largest_head:
        raise BackendError(
            f"{name} takes heads of a multiple of {HEAD_MULTIPLE} up to {limits.largest_head}, "
            f"not {place.head_size}.",
            way_out,
        )
    if place.capability and not limits.first_major <= place.capability[0] <= limits.last_major:
        major, minor = place.capability
        raise BackendError(f"{name} does not run on compute capability {major}.{minor}.", way_out)


def _check_flex(device_type: str) -> None:
    if device_type != "cuda":
        raise BackendError(
            f"flex needs a CUDA device, and this is {device_type}, where flex_attention has no gradient.",
            "Use attn_backend sdpa or auto there.",
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def load_varlen_kernel(name: str) -> Callable[..., Any]:
    """Import a kernel that is called as (q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)."""
    return {
        "flash_attn_4": _load_flash_attn_4,
        "flash_attn_3": _load_flash_attn_3,
        "flash_attn_2": _load_flash_attn_2,
        "torch_varlen": _load_torch_varlen,
    }[name]()


def _load_flash_attn_4() -> Callable[..., Any]:
    try:
        from flash_attn.cute import interface  # noqa: F401

        from .flash4 import flash4_varlen
    except ImportError as error:
        raise _not_installed("flash_attn_4", "flash-attn-4", error, "'flash-attn-4>=4.0.0b1'") from error
    return flash4_varlen


def _load_flash_attn_3() -> Callable[..., Any]:
    try:
        from flash_attn_interface import flash_attn_varlen_func
    except ImportError as error:
        raise _not_installed("flash_attn_3", "flash-attn-3", error, "flash-attn-3") from error
    return flash_attn_varlen_func  # type: ignore[no-any-return]


def _load_flash_attn_2() -> Callable[..., Any]:
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError as error:
        raise _not_installed(
            "flash_attn_2", "flash-attn", error, "--no-build-isolation 'flash-attn>=2.8'"
        ) from error
    return flash_attn_varlen_func  # type: ignore[no-any-return]


def _not_installed(name: str, package: str, error: ImportError, source: str) -> BackendError:
    return BackendError(
        f"{name} needs {package}, which does not import ({error}).",
        f"pip install {source}, or use attn_backend torch_varlen.",
    )


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
            "pip install 'liger-kernel>=0.8', or use kernel_backend torch.",
        ) from error
    return LigerFunctions(LigerRMSNormFunction, LigerSiLUMulFunction)


def check_liger(device_type: str) -> None:
    """Raise `BackendError` unless liger's norm and activation run on this device."""
    if device_type != "cuda":
        raise BackendError(
            f"kernel_backend liger needs a CUDA device, and this is {device_type}.",
            "Use kernel_backend torch or auto there.",
        )
    load_liger()
