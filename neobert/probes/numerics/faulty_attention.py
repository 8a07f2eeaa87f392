"""Temporary replacement of functions, and attention with a planted fault, for any kernel.

In chosen layers and heads, rows of the kernel's result are replaced by the result of attention over other
keys.

Shapes: T tokens, N heads, H channels of a head.
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
def patched(targets: Sequence[Target], wrap: Callable[[Function, Target], Function]) -> Iterator[None]:
    """Replace each function with `wrap(function, target)` while the context is open."""
    before = [(target, getattr(*target)) for target in targets]
    try:
        for target, function in before:
            setattr(*target, wrap(function, target))
        yield
    finally:
        for target, function in before:
            setattr(*target, function)


Change = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]
"""(layer, q, k, v, context): replaces rows of context [T, N, H] in place."""


IN_MODEL: tuple[Target, ...] = (
    (encoder, "packed_attention"),
    (encoder, "padded_attention"),
)
IN_KERNELS: tuple[Target, ...] = tuple(
    (import_module(kernel.block_module), "run_forward") for kernel in block_attention(row_length=0)
)


@dataclass(frozen=True, eq=False)
class Reach:
    """A fault that lets queries attend to the wrong keys.

    Attributes:
        layers, heads: indices; None for all.
        groups: (queries, keys), indices among the T tokens.
        is_causal: hide later keys; queries and keys are then the same places.
    """

    groups: Sequence[tuple[Tensor, Tensor]]
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    is_causal: bool = False

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, context: Tensor) -> None:
        """Replace the context of the chosen heads of a chosen layer."""
        if self.layers is not None and layer not in self.layers:
            return
        heads = torch.tensor(self.heads or range(q.shape[1]), device=q.device)
        q, k, v = (part.index_select(1, heads).float() for part in (q, k, v))
        for queries, keys in self.groups:
            context_rows = _attend(q[queries], k[keys], v[keys], is_causal=self.is_causal)
            context[queries[:, None], heads] = context_rows.to(context.dtype)


@dataclass(frozen=True, eq=False)
class Noise:
    """A fault of determinism: random noise on a layer's context, new in every pass."""

    share: float

    def __call__(self, layer: int, *of_context: Tensor) -> None:
        """Add noise to the first layer's context."""
        if layer == 0:
            context = of_context[-1]
            context += self.share * torch.randn_like(context)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """Attend in all heads at once: [Q, N, H] and [K, N, H]. One launch per head and segment took seconds."""
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)[0].transpose(0, 1)


@contextmanager
def faulty_attention(change: Change) -> Iterator[None]:
    """Apply a change to the result of every attention kernel of this process while the context is open."""
    with (
        patched(IN_MODEL, lambda make, _: _in_model(make, change)),
        patched(IN_KERNELS, lambda run, _: _in_kernels(run, change)),
    ):
        yield


def _in_model(make: Callable[..., Attend], change: Change) -> Callable[..., Attend]:
    """Change the result of the model's `attend`, which is made once per forward and called once per layer."""

    def make_changed(*arguments: Any) -> Attend:
        attend, layers = make(*arguments), cycle(range(NUM_LAYERS))

        def changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            context = attend(q, k, v).clone()
            flat = [part.reshape(-1, *part.shape[-2:]) for part in (q, k, v)]
            change(next(layers), *flat, context.view(-1, *context.shape[-2:]))  # type: ignore[call-arg]
            return context

        return changed

    return make_changed


def _in_kernels(run: Callable[..., Any], change: Change) -> Callable[..., Any]:
    """Change the result of this project's kernels: context [T, N * H] of rotated qkv [T, 3 * N * H]."""
    calls = 0

    def changed(qkv: Tensor, segments: Tensor, *rest: int) -> tuple[Tensor, Tensor]:
        nonlocal calls
        context, lse = run(qkv, segments, *rest)
        num_heads = rest[-1]
        parts = qkv.view(qkv.shape[0], num_heads, 3, -1).unbind(2)
        change(calls % NUM_LAYERS, *parts, context.view(context.shape[0], num_heads, -1))  # type: ignore[call-arg]
        calls += 1
        return context, lse

    return changed
