"""This project's attention for transformers models: packed, and as a plain formula. Needs torch.

Both functions are in transformers' registry, by the names `PACKED` and `PLAIN`. A model passes them the
arguments of its own forward, and its blocks their windows and scales; registered names have no masks.

Shapes: T packed tokens, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from neobert.errors import ProjectError
from neobert.families.attention import AttentionSpec, Window
from neobert.families.packed_attention import packed_attention
from neobert.kernels.plain_attention import plain_attention
from neobert.model.backends import BackendError, ChosenKernel, choose_backend, current_environment

PACKED, PLAIN = "neobert_packed", "neobert_plain"
WITHOUT_EFFECT = frozenset({"position_ids", "use_cache"})
"""Arguments of a model's forward that its blocks pass on, and that do not affect an encoder's attention."""


def attend_packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    kernel: str,
    dropout: float = 0.0,
    **own: Any,
) -> tuple[Tensor, None]:
    """Attend within the documents of one row: [1, N, T, H] to [1, T, N, H]. No weights are returned.

    Raises `ProjectError` MOD005 like `spec_from_call`.
    """
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    # Rotations in fp32 promote queries and keys of half precision, which kernels do not take.
    q, k = q.to(v.dtype), k.to(v.dtype)
    spec = spec_from_call(module, q, k, **own)
    attend = packed_attention(kernel, cu_seq_lens_q, max_length_q, len(q), spec, dropout)
    return attend(q, k, v)[None], None


def spec_from_call(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> AttentionSpec:
    """Return the attention of a block from the arguments that it passes; q [T, N, H], k [T, K, H].

    Raises `ProjectError` MOD005 for an argument that is not None and not known: it may change the scores.
    """
    for name, value in others.items():
        if value is not None and value is not False and name not in WITHOUT_EFFECT:
            message = f"{type(module).__name__} passes {name}, which packed attention does not compute"
            hint = "set datacollator.pack_sequences to false"
            raise ProjectError("MOD005", message, hint, "datacollator.pack_sequences")
    size = q.shape[-1]
    # transformers counts the token itself in a window.
    window = None if sliding_window is None else Window((0,), sliding_window - 1)
    return AttentionSpec(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        head_size=size,
        direction="causal" if getattr(module, "is_causal", False) else "bidirectional",
        window=window,
        scale=None if scaling in (None, size**-0.5) else scaling,
        softcap=softcap,
    )


def attend_by_formula(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    *,
    spec: AttentionSpec,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend within one document by the formula of the model's shape, without dropout."""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    # Only models with windows have to number their blocks.
    block_spec = spec if spec.window is None else spec.for_layer(cast("int", module.layer_idx))
    return plain_attention(q, k, v, block_spec), None


AttentionInterface.register(PACKED, attend_packed)
AttentionInterface.register(PLAIN, attend_by_formula)


@contextmanager
def use_attention(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Run the `with` block with another implementation of attention."""
    settings = model.config
    own, settings._attn_implementation = settings._attn_implementation, implementation
    try:
        yield
    finally:
        settings._attn_implementation = own


def choose_kernel(
    requested: str,
    device_type: str,
    dtype: torch.dtype,
    spec: AttentionSpec,
    row_length: int | None = None,
) -> ChosenKernel:
    """Choose the kernel of packed attention; `row_length` is the longest row in tokens, if known.

    Raises `ProjectError` ATT001 if none can run.
    """
    environment = current_environment(device_type, dtype, spec.head_size, spec.features, row_length)
    try:
        return choose_backend(requested, environment)
    except BackendError as error:
        raise ProjectError("ATT001", error.message, error.hint, "model.config") from error
