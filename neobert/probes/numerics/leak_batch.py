"""Microbatch for leak tests: segment lengths at tile edges, and token ids that no two segments share.

The trainer's own collator builds the microbatch, so its shapes and padding are the same as in training.

Shapes: T tokens, padding included (the packed row, or batch size times row length).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.config.schema import RunConfig
from neobert.data.batches.masking import MaskingRule
from neobert.data.batches.microbatch import Assembler, Microbatch
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.targets import IGNORED
from neobert.data.batches.windows import Cursor
from neobert.data.store.segment_store import LengthStatistics
from neobert.data.store.token_store import TokenStore
from neobert.families.table import max_row_length

EDGE_LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 145, 300)
MANY_SHORT = tuple(range(3, 23))
SPARE_SLOTS = 5
FIRST_ID = 8
"""Lowest token id in segments: lower ids are reserved for markers, and 0 for padding."""

PAD_ID = 0
TARGET_STRIDE = 7
"""Tokens per target. Training has more targets; these must fit the rows allocated for the decoder."""


@dataclass(frozen=True, eq=False)
class LeakBatch:
    """A microbatch and the positions of its segments.

    Attributes:
        inputs: keyword arguments of the encoder, on the device.
        places: for each segment, the indices of its tokens in the flat batch, int64 [length].
        padding: indices of the padding tokens in the flat batch.
        ids_per_segment: number of token ids reserved for each segment, from `first_id(segment)`.
    """

    inputs: dict[str, Any]
    places: tuple[Tensor, ...]
    padding: Tensor
    ids_per_segment: int
    vocab_size: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the segments in tokens, in the order of the batch."""
        return tuple(len(places) for places in self.places)

    @property
    def input_ids(self) -> Tensor:
        """Token ids, flattened to [T]."""
        ids: Tensor = self.inputs["input_ids"].flatten()
        return ids

    def first_id(self, segment: int) -> int:
        """Return the first token id reserved for a segment; index `len(places)` stands for the padding."""
        return FIRST_ID + segment * self.ids_per_segment

    def own_ids(self, segment: int) -> slice:
        """Return the token ids reserved for a segment: the embedding rows that no other segment reads."""
        return slice(self.first_id(segment), self.first_id(segment + 1))

    def with_inputs(self, **changes: Any) -> LeakBatch:
        """Return a copy of the batch with the given encoder arguments replaced."""
        return replace(self, inputs={**self.inputs, **changes})

    def with_other_tokens(self, segment: int, chosen: slice = slice(None)) -> LeakBatch:
        """Return a copy in which the chosen tokens of a segment have other ids reserved for that segment."""
        places, first = self.places[segment][chosen], self.first_id(segment)
        ids = self.input_ids.clone()
        ids[places] = first + (ids[places] - first + 1) % self.ids_per_segment
        return self.with_inputs(input_ids=ids.view_as(self.inputs["input_ids"]))

    def with_other_padding(self) -> LeakBatch:
        """Return a copy whose padding is filled with token ids that no segment uses."""
        ids = self.input_ids.clone()
        spread = torch.arange(len(self.padding), device=ids.device) % self.ids_per_segment
        ids[self.padding] = self.first_id(len(self.places)) + spread
        return self.with_inputs(input_ids=ids.view_as(self.inputs["input_ids"]))

    def labels(self, places: Tensor) -> Tensor:
        """Return labels shaped like input_ids: a target at every `TARGET_STRIDE`-th index, else -100."""
        chosen = places[::TARGET_STRIDE]
        labels = torch.full_like(self.input_ids, IGNORED)
        labels[chosen] = (chosen * 31 + 7) % self.vocab_size
        return labels.view_as(self.inputs["input_ids"])

    def positions_outside(self, segment: int | None) -> Tensor:
        """Return the indices of the tokens of all other segments; with None, of all segments."""
        return torch.cat([places for number, places in enumerate(self.places) if number != segment])


def lengths_for(longest: int) -> tuple[int, ...]:
    """Return the segment lengths of the leak batch for rows of at most `longest` tokens."""
    edges = [length for length in EDGE_LENGTHS if length < longest]
    return (*edges, longest, *(length for length in MANY_SHORT if length < longest))


def build_leak_batch(
    config: RunConfig, vocab_size: int, lengths: tuple[int, ...], device: torch.device, min_tokens: int = 0
) -> LeakBatch:
    """Build a microbatch with one segment per length, then padding, using the run's collator.

    Args:
        min_tokens: minimum tokens of a packed row, to reuse kernels that are compiled for one row length.
    """
    longest = max(max_row_length(config), *lengths)
    ids_per_segment = (vocab_size - FIRST_ID) // (len(lengths) + 1)
    assert ids_per_segment > 1, f"vocabulary of {vocab_size} tokens is too small for {len(lengths)} segments"
    shape = batch_shape_for(config, lengths, longest, min_tokens)
    batch = _batch_assembler(shape, vocab_size).build(
        _random_store(lengths, ids_per_segment), np.arange(len(lengths)), 0, 0, Cursor()
    )
    places, padding = _token_positions(batch, lengths)
    return LeakBatch(
        _model_inputs(batch.to(device)),
        tuple(part.to(device) for part in places),
        padding.to(device),
        ids_per_segment,
        vocab_size,
    )


def batch_shape_for(
    config: RunConfig, lengths: tuple[int, ...], longest: int, min_tokens: int = 0
) -> BatchShape:
    """Return the batch shape for segments of these lengths; a packed row has spare segments and padding."""
    if not config.datacollator.pack_sequences:
        return BatchShape(len(lengths), longest, len(lengths), is_packed=False)
    rows = ceil(max(sum(lengths) + longest // 16 + 1, min_tokens) / longest)
    return BatchShape(rows, longest, len(lengths) + SPARE_SLOTS, is_packed=True)


def _random_store(lengths: tuple[int, ...], ids_per_segment: int) -> TokenStore:
    sizes = np.asarray(lengths, dtype=np.int64)
    tokens = [
        FIRST_ID + number * ids_per_segment + (np.arange(size) * 5 + number) % ids_per_segment
        for number, size in enumerate(lengths)
    ]
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return TokenStore(np.concatenate(tokens).astype(np.uint32), offsets, LengthStatistics.from_lengths(sizes))


def _batch_assembler(shape: BatchShape, vocab_size: int) -> Assembler:
    """Build the trainer's collator without masked tokens: each probe chooses its own targets."""
    ids, is_maskable = np.arange(vocab_size), np.ones(vocab_size, dtype=np.bool_)
    rule = MaskingRule(0.0, mask_all=True, mask_id=0, random_ids=ids, is_maskable=is_maskable)
    return Assembler(shape, rule, seed=0, pad_id=PAD_ID, vocab_size=vocab_size)


def _token_positions(batch: Microbatch, lengths: tuple[int, ...]) -> tuple[list[Tensor], Tensor]:
    if batch.attention_mask is None:
        used = torch.arange(sum(lengths))
        is_token = torch.arange(batch.input_ids.numel()) < sum(lengths)
    else:
        is_token = batch.attention_mask.flatten()
        used = is_token.nonzero().squeeze(1)
    return list(used.split(list(lengths))), (~is_token).nonzero().squeeze(1)


def _model_inputs(batch: Microbatch) -> dict[str, Any]:
    return {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "attention_mask": batch.attention_mask,
        "cu_seqlens": batch.cu_seqlens,
        "max_seqlen": batch.max_seqlen,
    }
