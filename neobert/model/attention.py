"""Attention kernels with one interface: `attend(q, k, v) -> context`. Copied into every checkpoint folder.

A model makes one `attend` per forward and passes it to all its blocks. Padded rows use SDPA with a mask.
Packed runs use the requested backend only, and raise an error with the reason if it cannot run.
`attn_implementation` replaces both with a function registered in transformers.

`record_kernels` collects the kernel that each block ran. A traced graph does not call Python again, so its
kernel is recorded at trace time, and the graph then always runs this kernel. Blocks that share one graph are
recorded once, at the first of them.

Shapes: B rows, S row length, T packed tokens, K segments, N heads, H channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .backends import HALF_TYPES, LOADED, check_tensors, load_attention
from .flex import row_mask

NOWHERE: dict[int, str] = {}
_notes = NOWHERE
_layer = 0


@contextmanager
def record_kernels(kernels: dict[int, str]) -> Iterator[None]:
    """Record in `kernels`, by block number, the kernels that run or are traced inside the `with` block."""
    global _notes
    outer, _notes = _notes, kernels
    try:
        yield
    finally:
        _notes = outer


@torch.compiler.assume_constant_result
def enter_layer(number: int) -> None:
    """Set the number of the block that runs next."""
    global _layer
    _layer = number


@torch.compiler.assume_constant_result
def record_kernel(name: str) -> None:
    """Record the attention kernel that the current block runs."""
    # Nothing is written outside `record_kernels`: an evaluation must not change the record of training.
    if _notes is not NOWHERE:
        _notes[_layer] = name


def summarize_kernels(kernels: Mapping[int, str]) -> str | None:
    """Return the kernel of all blocks, or each kernel with its blocks (`sdpa: 3, torch_varlen: 0-2 4-27`).

    None if no kernel was recorded.
    """
    names = sorted(set(kernels.values()))
    if len(names) < 2:
        return names[0] if names else None
    layers = {name: sorted(layer for layer in kernels if kernels[layer] == name) for name in names}
    return ", ".join(f"{name}: {_format_ranges(numbers)}" for name, numbers in layers.items())


def _format_ranges(numbers: list[int]) -> str:
    """Format ascending numbers as ranges: 0-2 4."""
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RegisteredAttention:
    """Attention by a function from transformers' registry, for padded or packed blocks.

    Attributes:
        name: the model's `attn_implementation`.
        mask: the padding mask in the function's form: [B, S] for FlashAttention, a BlockMask for
            flex_attention, else [B, 1, S, S], added to the scores.
        arguments: passed to the function, such as the bounds of packed segments.
    """

    name: str
    mask: Tensor | BlockMask | None
    arguments: Mapping[str, Any]

    def for_block(self, block: nn.Module) -> Attend:
        """Return the `attend` of one block; the registered function may read the block's attributes."""
        return partial(self._attend, block)

    def _attend(self, block: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        record_kernel(self.name)
        is_flat = q.dim() == 3
        q, k, v = ((x[None] if is_flat else x).transpose(1, 2) for x in (q, k, v))
        context, _ = ALL_ATTENTION_FUNCTIONS[self.name](
            block, q, k, v, self.mask, dropout=0.0, scaling=q.shape[-1] ** -0.5, is_causal=False,
            **self.arguments,
        )  # fmt: skip
        return context[0] if is_flat else context


def registered_mask(
    name: str, attention_mask: Tensor | None, dtype: torch.dtype
) -> Tensor | BlockMask | None:
    """Convert a mask, or None, to the form of the registered function (see `RegisteredAttention.mask`).

    Raises `ValueError` as `normalize_mask` does, and for a float mask with flex_attention.
    """
    mask = normalize_mask(attention_mask)
    if mask is None or "flash" in name:
        return attention_mask
    if name == "flex_attention":
        return row_mask(mask)
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    return mask.to(dtype).expand(-1, -1, mask.shape[-1], -1)


def padded_attention(mask: Tensor | None) -> Attend:
    """Return the `attend` for padded rows: SDPA over q, k, v [B, S, N, H], `mask` from `normalize_mask`."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # A float mask has to match the queries, which autocast may have halved.
        bias = mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
        record_kernel("sdpa")
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)

    return attend


def eager_attention(mask: Tensor | None, probabilities: list[Tensor]) -> Attend:
    """Return an `attend` of plain matrix products that appends its weights [B, N, S, S] to the list."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        record_kernel("eager")
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = (q @ k.transpose(-1, -2)).to(torch.float32) * q.shape[-1] ** -0.5
        weights = _masked_softmax(scores, mask).to(v.dtype)
        probabilities.append(weights)
        return (weights @ v).transpose(1, 2)

    return attend


def _masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax over keys; a query without any key gets zeros, as in SDPA."""
    if mask is None:
        return scores.softmax(-1)
    is_open = mask if mask.dtype == torch.bool else mask > -torch.inf
    is_blind = ~is_open.any(-1, keepdim=True)
    # A float mask is added as it is: its -inf hides, and other values bias the scores.
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    # Without the first fill, the backward of a query without keys is 0 * NaN.
    return scores.masked_fill(is_blind, 0.0).softmax(-1).masked_fill(is_blind, 0.0)


def normalize_mask(mask: Tensor | None) -> Tensor | None:
    """Convert a mask [B, S] or [B, 1 or N, 1 or S, S] to the form of SDPA; None stays None.

    True or 1 marks a key to attend to. Floats are added to the scores: 0 keeps a key, minus infinity hides
    it.
    Raises `ValueError` for other shapes, and for floats above 0.
    """
    if mask is None:
        return None
    if mask.dim() == 2:
        mask = mask[:, None, None, :]
    elif mask.dim() != 4:
        raise ValueError(f"attention_mask has {mask.dim()} dimensions, expected [B, S] or [B, heads, S, S]")
    if not mask.is_floating_point():
        return mask.to(torch.bool)
    if not torch.compiler.is_compiling() and bool((mask > 0).any()):
        raise ValueError(
            "a float attention_mask is added to the scores; a mask of 0 and 1 must be bool or int"
        )
    return mask


def packed_attention(
    backend: str, cu_seqlens: Tensor, max_seqlen: int, num_tokens: int, **options: Any
) -> Attend:
    """Return the `attend` within the segments of a flat run: q, k, v [T, N, H].

    `cu_seqlens` [K+1] are the segment bounds from 0 to T, empty segments included. `backend` is the name of a
    kernel from `backends.choose_backend`, and `options` are further arguments of a varlen kernel. Raises
    `BackendError` if the kernel cannot be imported.
    """
    cu_seqlens = cu_seqlens.to(torch.int32)
    is_varlen = load_attention(backend)
    kernel = LOADED[backend]
    if not is_varlen:
        kernel = kernel(cu_seqlens, max_seqlen, num_tokens)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        record_kernel(backend)
        if not is_varlen:
            return kernel(q, k, v)
        # These kernels read device memory unchecked: a tensor of the host or of another type would end the
        # process. Only the comparison is traced; the message is built outside of the graph.
        if q.device.type != "cuda" or q.dtype not in HALF_TYPES:
            check_tensors(backend, q.device.type, q.dtype)
        context = kernel(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, **options)
        # Some releases of FlashAttention 3 return the log-sum-exps as well.
        return context[0] if isinstance(context, tuple) else context

    return attend


@torch.compiler.disable(reason="packed SDPA reads segment lengths on the host: compile with a varlen kernel")
def segment_lengths(cu_seqlens: Tensor, max_seqlen: int, num_tokens: int) -> list[int]:
    """Return the lengths of the non-empty segments. Synchronizes with the device.

    Called once per packed SDPA forward. Raises `ValueError` for bounds that do not increase from 0 to
    `num_tokens`, and for segments longer than `max_seqlen`.
    """
    bounds = cu_seqlens.tolist()
    lengths = [end - start for start, end in pairwise(bounds)]
    if bounds[0] != 0 or bounds[-1] != num_tokens or min(lengths, default=0) < 0:
        raise ValueError(
            f"cu_seqlens must increase from 0 to the {num_tokens} tokens of the run, got {bounds}"
        )
    if max(lengths, default=0) > max_seqlen:
        raise ValueError(f"a segment of {max(lengths)} tokens is longer than max_seqlen ({max_seqlen})")
    return [length for length in lengths if length]


def segmented_sdpa(cu_seqlens: Tensor, max_seqlen: int, num_tokens: int) -> Attend:
    """Return an `attend` that calls SDPA once per segment.

    Tensors are split, not sliced: the backward of a split is one concatenation. Raises `ValueError` as
    `segment_lengths` does.
    """
    lengths = segment_lengths(cu_seqlens, max_seqlen, num_tokens)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(x.transpose(0, 1).split(lengths, dim=1) for x in (q, k, v)), strict=True)
        outs = [F.scaled_dot_product_attention(*(x[None] for x in part))[0] for part in parts]
        return torch.cat([out.transpose(0, 1) for out in outs])

    return attend


def restarting_bounds(position_ids: Tensor) -> Tensor | None:
    """Return the segment bounds of one row, where its positions [S] restart, or None for one segment.

    Synchronizes with the device.
    """
    starts = (position_ids.diff() != 1).nonzero().flatten() + 1
    if not len(starts):
        return None
    return F.pad(F.pad(starts, (1, 0)), (0, 1), value=len(position_ids)).to(torch.int32)


def same_segment_mask(position_ids: Tensor) -> Tensor:
    """Return a mask [1, 1, S, S], True where two tokens share a segment.

    Used in compiled graphs, where `restarting_bounds` cannot run.
    """
    segment = F.pad((position_ids.diff() != 1).cumsum(0), (1, 0))
    return (segment[:, None] == segment)[None, None]


def positions_in_segments(cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    """Return positions [T], from zero in each segment, without a device synchronization."""
    # searchsorted instead of a loop over segments: nothing is read back from the device.
    index = torch.arange(num_tokens, device=cu_seqlens.device)
    segment = torch.searchsorted(cu_seqlens[1:], index, right=True)
    return index - cu_seqlens[segment]
