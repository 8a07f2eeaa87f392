"""Kernels of one step, and the attention among them.

A peer whose attention is dense math (products and a softmax of S x S matrices) is not at its best, and a
figure against it is not published: `require_fused_attention` raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

TOP = 8
FUSED = {
    "cudnn": r"cudnn.*(sdpa|flash|attention)",
    "flash": r"flash",
    "efficient": r"fmha_cutlass|AttentionKernel|AttentionBackwardKernel|efficient_attention",
    "triton_packed": r"^attention_(forward|backward)",
}
"""Patterns of the names of attention kernels; the first match counts."""
OTHERS = {"products": r"nvjet|gemm|cutlass", "optimizer": r"multi_tensor_apply"}
"""Kernels besides attention by what their names contain; all that matches nothing is elementwise work."""
# The fifth argument of torch's kernel for short rows says whether it takes the logarithm.
LOG_SOFTMAX = re.compile(r"log_?softmax|softmax_warp_\w+<(?:[^,<>]+, ){4}true", re.IGNORECASE)


class ProfiledKernel(NamedTuple):
    """A kernel (on a CPU, an operator), with its time and launches in a step."""

    name: str
    seconds: float
    launches: int


class DenseAttentionError(RuntimeError):
    """Raised if a peer's attention is not a fused kernel."""


@contextmanager
def profile_kernels() -> Iterator[list[ProfiledKernel]]:
    """Profile the `with` block; its list is filled at the end, the longest kernel first."""
    is_gpu, found = torch.cuda.is_available(), []
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities, acc_events=True) as profiled:
        yield found
        if is_gpu:
            torch.cuda.synchronize()
    device = DeviceType.CUDA if is_gpu else DeviceType.CPU
    rows = [
        ProfiledKernel(
            row.key, (row.self_device_time_total if is_gpu else row.self_cpu_time_total) / 1e6, row.count
        )
        for row in profiled.key_averages()
        if row.device_type == device and not row.is_user_annotation
    ]
    found += sorted((each for each in rows if each.seconds), key=lambda each: -each.seconds)


def record_kernels(step: Callable[[], Any]) -> list[ProfiledKernel]:
    with profile_kernels() as found:
        step()
    return found


def kernel_family(name: str) -> str | None:
    """Return the kind of fused attention that a kernel belongs to; None for other kernels."""
    return next((kind for kind, pattern in FUSED.items() if re.search(pattern, name, re.IGNORECASE)), None)


def model_part(name: str) -> str:
    """Return the part of a step that a kernel other than attention belongs to."""
    named = (part for part, pattern in OTHERS.items() if re.search(pattern, name, re.IGNORECASE))
    return next(named, "elementwise")


def is_dense_softmax(name: str) -> bool:
    """Return whether a kernel is the softmax of attention, and not the log-softmax of the loss.

    Inductor names a fused kernel after all its operators, the loss kernel for example
    `_log_softmax__to_copy_prepare_softmax_online`.
    """
    return not LOG_SOFTMAX.search(name) and "softmax" in name.lower()


def summarize_kernels(kernels: Iterable[ProfiledKernel]) -> dict[str, Any]:
    """Summarize kernels: the longest with their shares, attention by kind, and time per model part."""
    rows = list(kernels)
    total = sum(each.seconds for each in rows) or 1.0
    attention: dict[str, dict[str, float]] = {}
    parts: dict[str, float] = {}
    for each in rows:
        kind = kernel_family(each.name) or ("dense_softmax" if is_dense_softmax(each.name) else None)
        part = "attention" if kind else model_part(each.name)
        parts[part] = parts.get(part, 0.0) + 1e3 * each.seconds
        if kind:
            entry = attention.setdefault(kind, {"share": 0.0, "launches": 0})
            entry["share"] = round(entry["share"] + each.seconds / total, 4)
            entry["launches"] += each.launches
    return {
        "step_ms": round(1e3 * total, 2),
        "attention": attention,
        "parts_ms": {part: round(spent, 2) for part, spent in parts.items()},
        "top": [{"name": each.name[:120], "share": round(each.seconds / total, 4)} for each in rows[:TOP]],
    }


def require_fused_attention(kernels: Iterable[ProfiledKernel], num_layers: int) -> str:
    """Return the kind of fused attention. Raises `DenseAttentionError` if a layer uses dense math.

    A training step launches at least a forward and a backward kernel in each layer.
    """
    rows = list(kernels)
    if dense := [each.name for each in rows if is_dense_softmax(each.name)]:
        raise DenseAttentionError(f"dense attention: the step runs {dense[0][:120]}")
    launches: dict[str, int] = {}
    for each in rows:
        if kind := kernel_family(each.name):
            launches[kind] = launches.get(kind, 0) + each.launches
    if not launches:
        raise DenseAttentionError("dense attention: the step has no flash, cuDNN or memory-efficient kernel")
    kind = max(launches, key=lambda each: launches[each])
    if launches[kind] < 2 * num_layers:
        raise DenseAttentionError(f"{launches[kind]} launches of {kind} attention (minimum {2 * num_layers})")
    return kind
