"""Attention with a planted fault, for any kernel, and the temporary patching of functions that it needs.

In chosen layers and heads, rows of the kernel's output are replaced by the output of attention over other
keys.

Shapes: T tokens, N heads, H head size, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.kernel_table import block_attention
from neobert.model import encoder
from neobert.model.attention import Attend
from neobert.probes.numerics.paths import NUM_LAYERS

Target = tuple[ModuleType | type, str]
Function = Callable[..., Any]


@contextmanager
def patch_functions(
    targets: Sequence[Target], wrap: Callable[[Function, Target], Function]
) -> Iterator[None]:
    """Replace each target (module or class, name) with `wrap(function, target)` inside the `with` block."""
    before = [(target, getattr(*target)) for target in targets]
    try:
        for target, function in before:
            setattr(*target, wrap(function, target))
        yield
    finally:
        for target, function in before:
            setattr(*target, function)


Change = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]
"""Function of (layer, q, k, v, context) that changes rows of context [T, N, H] in place."""


MODEL_TARGETS: tuple[Target, ...] = (
    (encoder, "packed_attention"),
    (encoder, "padded_attention"),
)
KERNEL_TARGETS: tuple[Target, ...] = tuple(
    (import_module(kernel.block_module), "run_forward") for kernel in block_attention(row_length=0)
)


@dataclass(frozen=True, eq=False)
class ExtraKeys:
    """A fault that lets queries attend to the wrong keys.

    Attributes:
        layers, heads: indices of the layers and heads with the fault; None: all.
        groups: pairs of token indices (queries, keys): these queries attend to these keys.
        is_causal: mask later keys; the queries and keys of a group must then be the same tokens.
    """

    groups: Sequence[tuple[Tensor, Tensor]]
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    is_causal: bool = False

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> None:
        """Replace the output `context` of the chosen heads in place, if `layer` is one of the layers."""
        if self.layers is not None and layer not in self.layers:
            return
        heads = torch.tensor(self.heads or range(q.shape[1]), device=q.device)
        q, k, v = (part.index_select(1, heads).float() for part in (q, k, v))
        for queries, keys in self.groups:
            context_rows = _attend(q[queries], k[keys], v[keys], is_causal=self.is_causal)
            context[queries[:, None], heads] = context_rows.to(context.dtype)


@dataclass(frozen=True, eq=False)
class AttentionNoise:
    """Nondeterministic attention: new random noise on the first layer's output in every forward pass.

    Attributes:
        share: standard deviation of the noise.
    """

    share: float

    def __call__(self, layer: int, *tensors: Tensor) -> None:
        """Add noise to the attention output, the last of `tensors`, in place, in the first layer only."""
        if layer == 0:
            context = tensors[-1]
            context += self.share * torch.randn_like(context)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """Return the attention output [Q, N, H] of q [Q, N, H] and k, v [K, N, H], for all heads in one launch.

    One launch per head and segment took seconds.
    """
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)[0].transpose(0, 1)


@contextmanager
def faulty_attention(change: Change) -> Iterator[None]:
    """Apply `change` to the output of every attention kernel of this process inside the `with` block."""
    with (
        patch_functions(MODEL_TARGETS, lambda make, _: _wrap_model_attention(make, change)),
        patch_functions(KERNEL_TARGETS, lambda run, _: _wrap_kernel_attention(run, change)),
    ):
        yield


def _wrap_model_attention(make: Callable[..., Attend], change: Change) -> Callable[..., Attend]:
    """Wrap `make`, called once per forward pass: the `attend` that it returns applies `change`."""

    def make_changed(*arguments: Any) -> Attend:
        attend, layers = make(*arguments), cycle(range(NUM_LAYERS))

        def changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            context = attend(q, k, v).clone()
            flat = [part.reshape(-1, *part.shape[-2:]) for part in (q, k, v)]
            change(next(layers), *flat, context.view(-1, *context.shape[-2:]))  # type: ignore[call-arg]
            return context

        return changed

    return make_changed


def _wrap_kernel_attention(run: Callable[..., Any], change: Change) -> Callable[..., Any]:
    """Wrap a block's attention kernel, qkv [T, 3 * N * H] to [T, N * H], to apply `change` to its output."""
    calls = 0

    def run_and_change(qkv: Tensor, segments: Tensor, *rest: int) -> tuple[Tensor, Tensor]:
        nonlocal calls
        context, lse = run(qkv, segments, *rest)
        num_heads = rest[-1]
        parts = qkv.view(qkv.shape[0], num_heads, 3, -1).unbind(2)
        change(calls % NUM_LAYERS, *parts, context.view(context.shape[0], num_heads, -1))  # type: ignore[call-arg]
        calls += 1
        return context, lse

    return run_and_change
