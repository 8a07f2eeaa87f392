"""Correctness probes shared by tasks whose examples are segments of a token store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch, filler_of, is_target
from neobert.data.batches.targets import IGNORED
from neobert.training.loop.task import Answer, Examiner

TINY = 1e-30
PADDED_SHARE = 2
"""Padded rows take at most this multiple of the tokens of the packed run."""


def attention_answers(
    examiner: Examiner, batch: Microbatch, *, token_classes: int | None
) -> Iterator[Answer]:
    """Test that a text attends to its own later tokens, and neither to other texts nor to padding.

    Args:
        batch: full of text; every second segment or row is tested.
        token_classes: number of classes of a token's label; None: segments are labelled, not tokens.
    """
    batch = batch if batch.attention_mask is None else with_padding(batch)
    is_own, is_early = asked_tokens(batch)
    labelled = (
        with_half_of_labels(batch)
        if token_classes is None
        else with_early_labels(batch, is_own & is_early, token_classes)
    )
    before = examiner.loss(labelled)
    effect = abs(examiner.loss(with_other_tokens(labelled, is_own & ~is_early)) - before)
    leak = abs(examiner.loss(with_other_tokens(labelled, ~is_own)) - before)
    yield Answer("the later tokens of a text", "different", effect / max(abs(before), TINY))
    yield Answer("other texts and padding", "same", leak / max(effect, TINY))


def with_padding(batch: Microbatch) -> Microbatch:
    """Mask the last quarter of every row as padding, without changing its tokens."""
    assert batch.attention_mask is not None
    width = batch.input_ids.shape[1]
    mask = batch.attention_mask.clone()
    mask[:, width - width // 4 :] = False
    return replace(batch, attention_mask=mask, num_tokens=int(mask.sum()))


def asked_tokens(batch: Microbatch) -> tuple[Tensor, Tensor]:
    """Return two masks: the tokens of every second segment, and the tokens in the first half of any segment.

    Both are bool, in the shape of `input_ids`.
    """
    segment, length = segments_of(batch)
    is_own = segment % 2 == 0
    if batch.attention_mask is not None:
        is_own = is_own & batch.attention_mask
    return is_own, batch.position_ids < length // 2


def segments_of(batch: Microbatch) -> tuple[Tensor, Tensor]:
    """Return the segment number of each token and the segment's length, int64, broadcastable to `input_ids`.

    A packed microbatch must not contain padding.
    """
    if batch.attention_mask is not None:
        return torch.arange(len(batch.input_ids))[:, None], batch.attention_mask.sum(1, keepdim=True)
    assert batch.cu_seqlens is not None
    lengths = batch.cu_seqlens[: batch.num_segments + 1].diff().long()
    segment = torch.arange(batch.num_segments).repeat_interleave(lengths)
    return segment, lengths[segment]


def with_early_labels(batch: Microbatch, is_asked: Tensor, num_classes: int) -> Microbatch:
    """Label the tokens of the mask `is_asked` by their ids modulo `num_classes`.

    At most as many tokens are labelled as the batch has targets.
    """
    places = is_asked.flatten().nonzero().squeeze(1)[: batch.num_targets]
    labels = torch.full_like(batch.labels, IGNORED)
    labels.view(-1)[places] = batch.input_ids.flatten()[places] % num_classes
    return replace(batch, labels=labels, num_targets=len(places))


def with_half_of_labels(batch: Microbatch) -> Microbatch:
    """Keep the labels of every second segment, and ignore those of the others."""
    labels = batch.labels.clone()
    labels[1::2] = filler_of(labels.numpy())
    return replace(batch, labels=labels, num_targets=int(is_target(labels.numpy()).sum()))


def with_other_tokens(batch: Microbatch, is_other: Tensor) -> Microbatch:
    """Replace the tokens of the mask `is_other` by other tokens of the same microbatch."""
    others = batch.input_ids.flatten().flip(0).reshape(batch.input_ids.shape)
    return replace(batch, input_ids=torch.where(is_other, others, batch.input_ids))


def in_rows(batch: Microbatch) -> Microbatch:
    """Copy the first texts of a full packed row into padded rows."""
    assert batch.cu_seqlens is not None
    most = max(1, PADDED_SHARE * len(batch.input_ids) // batch.max_seqlen)
    lengths = batch.cu_seqlens[: batch.num_segments + 1].diff()[:most].long()
    is_token = torch.arange(int(lengths.max())) < lengths[:, None]

    def rows(values: Tensor, filler: float = 0) -> Tensor:
        grid = torch.full(is_token.shape, filler, dtype=values.dtype)
        grid[is_token] = values[: int(lengths.sum())]
        return grid

    labels_tokens = batch.labels.shape == batch.input_ids.shape
    labels = rows(batch.labels, IGNORED) if labels_tokens else batch.labels[: len(lengths)]
    return replace(
        batch,
        input_ids=rows(batch.input_ids),
        position_ids=rows(batch.position_ids),
        attention_mask=is_token,
        cu_seqlens=None,
        labels=labels,
        num_tokens=int(lengths.sum()),
        num_targets=int(is_target(labels.numpy()).sum()),
        num_segments=len(lengths),
    )
