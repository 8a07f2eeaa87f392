"""The microbatch with the most text: full to the last token, the longest documents, every slot in use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch


def full_of_text(batch: Microbatch, rows: int) -> Microbatch:
    """Stretch a microbatch to the most text that its shapes hold, in up to `rows` rows of max_length.

    Its labels stay: they are the task's to replace.
    """
    return _packed(batch) if batch.cu_seqlens is not None else _padded(batch, rows)


def _packed(batch: Microbatch) -> Microbatch:
    assert batch.cu_seqlens is not None
    total, slots = batch.input_ids.numel(), batch.cu_seqlens.numel() - 1
    lengths = adversarial_lengths(total, slots, batch.max_seqlen)
    cu_seqlens = torch.full_like(batch.cu_seqlens, total)
    cu_seqlens[0] = 0
    cu_seqlens[1 : len(lengths) + 1] = torch.tensor(lengths).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return _whole(batch, _real_tokens(batch, (total,)), positions, cu_seqlens=cu_seqlens, segments=lengths)


def adversarial_lengths(total: int, slots: int, longest: int) -> list[int]:
    """Fill `total` tokens: half in the longest documents, the rest in as many as there are slots left.

    A microbatch has a slot for each of its rows at least, and a row is as long as the longest document.
    """
    num_long = max(1, total // longest // 2)
    rest, left = total - num_long * longest, slots - num_long
    if rest == 0:
        return [longest] * num_long
    left = min(left, rest)
    short = [rest // left + (index < rest % left) for index in range(left)]
    return [longest] * num_long + short


def _padded(batch: Microbatch, rows: int) -> Microbatch:
    assert batch.attention_mask is not None
    shape = (rows, batch.max_seqlen)
    positions = torch.arange(batch.max_seqlen).expand(shape).contiguous()
    mask = torch.ones(shape, dtype=batch.attention_mask.dtype)
    segments = [batch.max_seqlen] * rows
    return _whole(batch, _real_tokens(batch, shape), positions, attention_mask=mask, segments=segments)


def _real_tokens(batch: Microbatch, shape: tuple[int, ...]) -> Tensor:
    """Return ids that the text has, over and over."""
    ids = batch.input_ids.flatten()
    if batch.attention_mask is not None:
        ids = ids[batch.attention_mask.flatten()]
    count = torch.Size(shape).numel()
    return ids.repeat(-(-count // ids.numel()))[:count].reshape(shape)


def _whole(batch: Microbatch, ids: Tensor, positions: Tensor, segments: list[int], **more: Any) -> Microbatch:
    return replace(
        batch,
        input_ids=ids,
        position_ids=positions,
        num_tokens=ids.numel(),
        num_segments=len(segments),
        sample_ids=torch.arange(len(segments)),
        **more,
    )
