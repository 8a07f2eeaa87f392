"""Digests of a microbatch's texts, which identify copies, and selection of examples without scores."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.stateless_random import random_words, stream_key

_TOKEN_STREAM = 0x746F6B656E


def text_digests(batch: Microbatch) -> Tensor:
    """Return a digest of the tokens of each text, int64 [K]; texts of equal tokens have equal digests.

    The digest is the sum modulo 2**64 of a hash of each token and its position.
    """
    if batch.cu_seqlens is None:
        assert batch.attention_mask is not None
        text = torch.arange(len(batch.groups))[:, None].expand(batch.input_ids.shape)[batch.attention_mask]
        ids, places = batch.input_ids[batch.attention_mask], batch.position_ids[batch.attention_mask]
    else:
        lengths = batch.cu_seqlens[: batch.num_segments + 1].diff().long()
        text = torch.arange(batch.num_segments).repeat_interleave(lengths)
        ids, places = batch.input_ids[: len(text)], batch.position_ids[: len(text)]
    words = random_words(stream_key(_TOKEN_STREAM), (ids << 32 | places).numpy())
    digests = torch.zeros(len(batch.groups), dtype=torch.int64)
    return digests.index_add_(0, text, torch.from_numpy(words.view("int64")))


def text_scores(batch: Microbatch) -> Tensor:
    """Return the score of each text, fp32 [texts]; NaN for a text without a score."""
    assert batch.scores is not None
    return batch.scores[: batch.num_segments]


def without_scored_examples(batch: Microbatch, *, keeps_taught: bool = False) -> Microbatch:
    """Replace scored examples with padding: all, or with `keeps_taught` only those with a single score.

    Examples that a teacher has scored have a score for each document.
    """
    if batch.scores is None:
        return batch
    first, scores = first_text_indices(batch), text_scores(batch)
    number = torch.bincount(first[~scores.isnan()], minlength=len(first))[first]
    groups = batch.groups.clone()
    groups[: len(first)][(number == 1) if keeps_taught else (number > 0)] = -1
    return replace(batch, groups=groups)


def first_text_indices(batch: Microbatch) -> Tensor:
    """Return, for each text, the index of the first text in its example, int64 [texts]."""
    groups = batch.groups[: batch.num_segments]
    return torch.searchsorted(groups, groups)
