"""Batches of a peer on the device: full rows, padded rows of similar length, or one packed row.

B rows, S row length, T tokens of a step
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.data.store.token_store import TokenStore
from neobert.data.tokenize.tokenizers import TokenizerBundle
from peers.attention import segment_bounds

MASKED_SHARE, IGNORED, MULTIPLE = 0.2, -100, 64
"""Share of masked tokens, label of other tokens, and the multiple to which rows are padded."""
NUM_BATCHES, NUM_GROUPED = 4, 16
TOKENS_PER_SLOT = 128
"""Tokens per boundary: a packed row has a fixed number of boundaries, to avoid recompilation."""


class PeerBatch:
    """Rows of one shape. A fixed number of tokens (a fifth) is masked, to avoid recompilation."""

    def __init__(
        self, rows: Tensor, is_token: Tensor, mask_id: int, num_targets: int, device: str, **more: Any
    ) -> None:
        places = is_token.flatten().nonzero().squeeze(1)
        chosen = places[torch.randperm(len(places))[:num_targets]]
        labels = torch.full((rows.numel(),), IGNORED)
        labels[chosen] = rows.flatten()[chosen]
        inputs = rows.flatten().clone()
        inputs[chosen] = mask_id
        self.num_tokens = len(places)
        self.inputs: dict[str, Any] = {
            "input_ids": inputs.view_as(rows).to(device),
            "labels": labels.view_as(rows).to(device),
            **more,
        }


def concatenated_batches(
    store: TokenStore, tokenizer: TokenizerBundle, tokens: int, width: int, device: str
) -> Iterator[PeerBatch]:
    """Cut the text into full rows without isolation of documents; `NUM_BATCHES` batches [B, S]."""
    rows = tokens // width
    for index in range(NUM_BATCHES):
        ids = torch.from_numpy(store.tokens[index * tokens : (index + 1) * tokens].astype("int64"))
        is_token = torch.ones(rows, width, dtype=torch.bool)
        yield PeerBatch(
            ids.view(rows, width), is_token, tokenizer.mask_id, int(MASKED_SHARE * tokens), device
        )


def grouped_batches(
    store: TokenStore, tokenizer: TokenizerBundle, tokens: int, longest: int, device: str
) -> Iterator[PeerBatch]:
    """Put each document into a row of its own, next to documents of similar length.

    As many rows as `tokens` hold, so that short documents fill the GPU too: at least as fast as
    `train_sampling_strategy="group_by_length"`, whose batches have a fixed number of rows. `NUM_GROUPED`
    batches, evenly over the lengths.
    """
    documents = sorted((each[:longest] for each in iterate_documents(store)), key=len, reverse=True)
    batches, first = [], 0
    while first < len(documents):
        width = MULTIPLE * -(-len(documents[first]) // MULTIPLE)
        rows = max(1, tokens // width)
        if first + rows <= len(documents):
            batches.append((width, documents[first : first + rows]))
        first += rows
    drawn = batches[:: max(1, len(batches) // NUM_GROUPED)]
    num_targets = int(MASKED_SHARE * min(sum(map(len, batch)) for _, batch in drawn))
    for width, batch in drawn:
        is_token = torch.arange(width)[None, :] < torch.tensor([len(ids) for ids in batch])[:, None]
        grid = torch.full((len(batch), width), tokenizer.pad_id)
        grid[is_token] = torch.cat(batch)
        mask = is_token[:, None, None, :].to(device)  # four dimensions: transformers passes it on as it is
        yield PeerBatch(grid, is_token, tokenizer.mask_id, num_targets, device, attention_mask=mask)


def flattened_batches(
    store: TokenStore, tokenizer: TokenizerBundle, tokens: int, longest: int, device: str
) -> Iterator[PeerBatch]:
    """Pack documents into one row [1, T] with their boundaries, the last cut; `NUM_BATCHES` batches."""
    for index in range(NUM_BATCHES):
        ids, lengths = packed_row(store, index, tokens)
        positions = torch.cat([torch.arange(length) for length in lengths])
        cu = segment_bounds(lengths, tokens, device, max(len(lengths), tokens // TOKENS_PER_SLOT))
        more = {"position_ids": positions[None].to(device), "cu_seq_lens_q": cu, "max_length_q": longest}
        is_token = torch.ones(1, tokens, dtype=torch.bool)
        yield PeerBatch(ids[None], is_token, tokenizer.mask_id, int(MASKED_SHARE * tokens), device, **more)


def packed_row(store: TokenStore, index: int, tokens: int) -> tuple[Tensor, list[int]]:
    """Return a packed row's ids [T] and its document lengths; the last document may be cut."""
    first, last = index * tokens, (index + 1) * tokens
    begin, end = np.searchsorted(store.offsets, (first + 1, last))
    bounds = [first, *map(int, store.offsets[begin:end]), last]
    lengths = [b - a for a, b in pairwise(bounds)]
    return torch.from_numpy(store.tokens[first:last].astype("int64")), lengths


def iterate_documents(store: TokenStore) -> Iterator[Tensor]:
    for first, last in pairwise(store.offsets):
        yield torch.from_numpy(store.tokens[first:last].astype("int64"))
