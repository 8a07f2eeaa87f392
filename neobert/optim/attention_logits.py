"""Measurement of the largest attention logit of every head, within documents.

Shapes: T tokens, B rows, S row length, N heads, H channels of a head, L blocks, D hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from neobert.model import NeoBERT
from neobert.model.layers import EncoderBlock, compute_rotation
from neobert.parallel import full_tensor

Span = tuple[int, int]


class LogitMeter:
    """Measurement of attention logits by a separate forward pass through an encoder, without gradients.

    A copy of a block on the meta device runs with each block's weights (`functional_call`), so compiled
    graphs and sharding are not affected, and attention kernels need not return logits.
    """

    def __init__(self, encoder: NeoBERT, chunk_size: int) -> None:
        self._encoder = encoder
        self._chunk_size = chunk_size
        config = copy.deepcopy(encoder.config)
        config.kernel_backend = "torch"
        with torch.device("meta"):
            self._template = EncoderBlock(config)

    @torch.no_grad()
    def measure(self, inputs: dict[str, Any]) -> Tensor:
        """Return the largest logit of each head [L, N], in fp32 or higher; -inf if there are no tokens.

        Waits for the device.

        Args:
            inputs: `input_ids`, `position_ids`, and either `cu_seqlens` or a boolean `attention_mask` [B, S];
                the other one is None.
        """
        encoder, config = self._encoder, self._encoder.config
        x = F.embedding(inputs["input_ids"], full_tensor(encoder.encoder.weight))
        x = x * config.embedding_multiplier
        rotation = None
        if encoder.positional_embedding is None:
            rotation = compute_rotation(inputs["position_ids"], config.dim_head, config.rope_theta)
        else:
            x = x + F.embedding(inputs["position_ids"], full_tensor(encoder.positional_embedding.weight))
        chunks = group_into_chunks(document_spans(inputs, config.pad_token_id), self._chunk_size, x.device)
        highest = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            context, largest = attend_and_measure(
                q.flatten(0, -3), k.flatten(0, -3), v.flatten(0, -3), chunks, self._chunk_size
            )
            highest.append(largest)
            return context.view_as(q)

        for block in encoder.transformer_encoder:
            x = functional_call(self._template, gather_weights(block), (x, rotation, attend))
        return torch.stack(highest)


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """Consecutive documents whose logits are computed together, or one document longer than a chunk.

    Attributes:
        start: index of the first token.
        end: index after the last token.
        is_same: boolean [tokens, tokens], true for two tokens of the same document; None for one document.
    """

    start: int
    end: int
    is_same: Tensor | None


def group_into_chunks(
    documents: Sequence[Span], chunk_size: int, device: torch.device
) -> list[DocumentChunk]:
    """Group consecutive documents, given as (first token, end), into chunks of at most `chunk_size` tokens.

    A longer document is a chunk of its own.
    """
    groups: list[list[Span]] = []
    for span in documents:
        if groups and span[1] - groups[-1][0][0] <= chunk_size:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_build_chunk(group, device) for group in groups]


def _build_chunk(documents: Sequence[Span], device: torch.device) -> DocumentChunk:
    start, end = documents[0][0], documents[-1][1]
    if len(documents) == 1:
        return DocumentChunk(start, end, None)
    owner = torch.full((end - start,), -1)
    for index, (first, last) in enumerate(documents):
        owner[first - start : last - start] = index
    owner = owner.to(device)
    return DocumentChunk(start, end, (owner[:, None] == owner) & (owner >= 0))  # gaps belong to no document


def attend_and_measure(
    q: Tensor, k: Tensor, v: Tensor, chunks: Sequence[DocumentChunk], chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Compute attention within documents; return the context [T, N, H] and max(q k) / sqrt(H) per head [N].

    The context is zero outside all documents. Logits have the dtype of q; the maxima are fp32 or higher.

    Args:
        q, k: queries and keys after rotary embedding [T, N, H].
        v: values [T, N, H].
        chunks: documents, grouped by `group_into_chunks`.
        chunk_size: maximum number of queries at a time.
    """
    context = torch.zeros_like(q)
    q, k, v = (x.transpose(0, 1) for x in (q * q.shape[-1] ** -0.5, k, v))
    highest = q.new_full(q.shape[:1], -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    for chunk in chunks:
        keys, values = k[:, chunk.start : chunk.end], v[:, chunk.start : chunk.end]
        for first in range(chunk.start, chunk.end, chunk_size):
            last = min(first + chunk_size, chunk.end)
            queries = q[:, first:last]
            highest = torch.maximum(highest, _largest_logits(queries, keys, chunk.is_same))
            context[first:last] = _masked_attention(queries, keys, values, chunk.is_same).transpose(0, 1)
    return context, highest


def _largest_logits(q: Tensor, k: Tensor, is_same: Tensor | None) -> Tensor:
    """Return the largest product of each head [N], for q and k [N, tokens, H].

    `is_same`: mask [tokens, tokens] of the products within a document; None for a single document.
    """
    logits = torch.bmm(q, k.mT)
    if is_same is not None:
        logits.masked_fill_(~is_same, -torch.inf)
    return logits.amax((1, 2))


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, is_same: Tensor | None) -> Tensor:
    """Compute attention under a mask (None: no mask); a query that may attend to nothing gets zeros.

    cuDNN is not used, because it builds a plan for every length.
    """
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=is_same, scale=1.0)[0]


def gather_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters by name, gathered if they are sharded. All ranks must call it."""
    return {name: full_tensor(each) for name, each in module.named_parameters()}


def document_spans(inputs: dict[str, Any], pad_id: int | None) -> list[Span]:
    """Return (first token, end) of each document in the flattened tokens; rows of `pad_id` are left out."""
    ids, bounds = inputs["input_ids"], inputs["cu_seqlens"]
    if bounds is None:
        lengths = inputs["attention_mask"].sum(1).tolist()
        return [(row * ids.shape[1], row * ids.shape[1] + length) for row, length in enumerate(lengths)]
    filler = -1 if pad_id is None else pad_id
    is_padding = (ids[bounds[:-1].long().clamp(max=len(ids) - 1)] == filler).tolist()
    spans = zip(pairwise(bounds.tolist()), is_padding, strict=True)
    return [span for span, is_pad in spans if not is_pad and span[0] < span[1]]
