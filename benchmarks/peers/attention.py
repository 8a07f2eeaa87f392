"""Attention functions for transformers' models, each pinned to one kernel, and the fastest of them.

transformers builds a mask for full rows too when it is compiled (`torch.compiler.is_exporting` is a constant
under Dynamo before torch 2.14). SDPA then has no fused kernel for it and runs dense math. A function that is
registered under a name of its own gets no mask that the caller did not pass.

B rows, S row length, H heads, E head size, T = B * S
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, DataCollatorWithFlattening

from neobert.families.hf.attention import attend_packed
from peers.turns import synchronize

FLATTENED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""Arguments of a model's forward that describe the texts of one flattened row."""
REPEATS = 20
torch._functorch.config.enable_autograd_cache = False
"""The keys of this cache do not include SDPA's kernel: it would return a graph with another kernel."""


class AttentionCandidate(NamedTuple):
    """An attention function of transformers and the SDPA kernel that it is pinned to."""

    implementation: str
    backend: SDPBackend | None = None

    def pinned(self) -> AbstractContextManager[Any]:
        """Return a context that restricts SDPA to this kernel; SDPA raises if the kernel cannot run."""
        return sdpa_kernel(self.backend) if self.backend is not None else nullcontext()


CANDIDATES = {
    "flash": AttentionCandidate("bench_sdpa", SDPBackend.FLASH_ATTENTION),
    "cudnn": AttentionCandidate("bench_sdpa", SDPBackend.CUDNN_ATTENTION),
    "efficient": AttentionCandidate("bench_sdpa", SDPBackend.EFFICIENT_ATTENTION),
    "flash4": AttentionCandidate("bench_fa4"),
    "varlen": AttentionCandidate("bench_varlen"),
}
FORMS = {
    "concatenated": ("flash", "cudnn", "flash4"),
    "grouped": ("efficient", "cudnn", "flash"),
    "flattened": ("varlen", "flash4"),
}
"""Candidates of each form of batches: full rows, padded rows with a mask, packed rows with boundaries."""


def attend(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend in rows [B, H, S, E]; attention_mask [B, 1, 1, S], true for tokens, or None for full rows."""
    bias = None
    if attention_mask is not None:
        zero = torch.zeros_like(attention_mask, dtype=query.dtype)
        bias = zero.masked_fill(~attention_mask, -torch.inf)
        bias = bias.expand(-1, -1, query.shape[2], -1)  # the last dimension is dense, for fused kernels
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    return out.transpose(1, 2), None


def attend_varlen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within the documents of one packed row [1, H, T, E], with torch's kernel (FlashAttention 2)."""
    if not query.is_cuda:  # for dry runs
        same = {"cu_seq_lens_q": cu_seq_lens_q, "max_length_q": max_length_q, "kernel": "sdpa"}
        return attend_packed(module, query, key, value, None, **same, sliding_window=sliding_window)
    from torch.nn.attention.varlen import varlen_attn

    # Under autocast, rotated queries and keys are in fp32.
    parts = (each.squeeze(0).transpose(0, 1).to(value.dtype) for each in (query, key, value))
    side = -1 if sliding_window is None else sliding_window - 1  # transformers counts the token itself
    bounds = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    out = varlen_attn(*parts, *bounds, window_size=(side, side))
    return out.unsqueeze(0), None


def attend_flash4(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with FlashAttention 4, in full rows or within the documents of a packed row."""
    from peers.flash4 import flash4

    parts = [each.transpose(1, 2).to(value.dtype) for each in (query, key, value)]  # as in `attend_varlen`
    if cu_seq_lens_q is None:
        return flash4(*parts, None, None)[0], None
    out = flash4(*(each.squeeze(0) for each in parts), cu_seq_lens_q, max_length_q)[0]
    return out.unsqueeze(0), None


FUNCTIONS: dict[str, Callable[..., tuple[Tensor, None]]] = {
    "bench_sdpa": attend,
    "bench_varlen": attend_varlen,
    "bench_fa4": attend_flash4,
}
for _name, _function in FUNCTIONS.items():
    AttentionInterface.register(_name, _function)


def fastest_candidate(
    form: str, heads: int, tokens: int, longest: int, device: str
) -> tuple[str, dict[str, Any]]:
    """Return the fastest candidate for a batch form, and each one's forward-and-backward ms or error.

    `tokens`: tokens of a step. `longest`: row length, and the longest document of a packed row. Raises
    `RuntimeError` if no candidate runs.
    """
    found: dict[str, Any] = {}
    for name in FORMS[form]:
        if name == "flash4" and find_spec("flash_attn") is None:
            found[name] = "flash-attn-4 is not installed"
            continue
        try:
            found[name] = round(measure_ms(CANDIDATES[name], form, heads, tokens, longest, device), 3)
        except Exception as error:  # whatever a kernel lacks, the others are measured
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    ran = {name: value for name, value in found.items() if isinstance(value, float)}
    if not ran:
        raise RuntimeError(f"no attention kernel runs for {form} rows: {found}")
    return min(ran, key=lambda name: ran[name]), found


def measure_ms(
    candidate: AttentionCandidate, form: str, heads: int, tokens: int, longest: int, device: str
) -> float:
    """Return the milliseconds of one attention forward and backward pass."""
    width = {"concatenated": longest, "grouped": longest // 4, "flattened": tokens}[form]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = (tokens // width, width, heads, 64)
    parts = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    mask, bounds = None, {}
    if form == "grouped":
        mask = (torch.arange(width, device=device) < width - width // 25).expand(shape[0], 1, 1, width)
    if form == "flattened":
        bounds = {"cu_seq_lens_q": segment_bounds([longest // 4] * (4 * tokens // longest), tokens, device)}
        bounds["max_length_q"] = longest
    function, module = FUNCTIONS[candidate.implementation], nn.Identity()
    rows = [each.transpose(1, 2) for each in parts]

    def once() -> None:
        out, _ = function(module, *rows, mask, scaling=64**-0.5, **bounds)
        out.backward(out, inputs=parts)
        for each in parts:
            each.grad = None

    with candidate.pinned():
        for _ in range(3):
            once()
        synchronize()
        started_s = time.perf_counter()
        for _ in range(REPEATS):
            once()
        synchronize()
    return (time.perf_counter() - started_s) / REPEATS * 1e3


def segment_bounds(lengths: Sequence[int], tokens: int, device: str, count: int | None = None) -> Tensor:
    """Return document boundaries (cu_seqlens), padded with empty documents to `count` documents."""
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    padding = bounds.new_full(((count or len(lengths)) - len(lengths),), tokens)
    return torch.cat([bounds, padding]).to(torch.int32).to(device)


def flatten_inputs(module: Any) -> None:
    """Make sentence-transformers flatten the inputs of a model whose attention function is registered here.

    Its class for transformers' models does so by itself only for a FlashAttention of transformers.
    """
    module.can_flatten_inputs = True
    module.data_collator = DataCollatorWithFlattening(
        return_seq_idx=True, return_flash_attn_kwargs=True, return_position_ids=True
    )
    if module.model_forward_params is not None:
        module.model_forward_params |= set(FLATTENED)
    module._flatten_position_offset = module._infer_flatten_position_offset()
