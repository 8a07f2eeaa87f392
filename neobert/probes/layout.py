"""Documents of a microbatch: positions of their tokens, and copies with other tokens or lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch

EDGES = (1, 2, 7, 64, 65, 129, 300)
"""Document lengths at tile boundaries of kernels, and the shortest ones."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Document of each token of a flat microbatch, int64 [tokens].

    Attributes:
        document: index of the token's document; -1 for padding.
        position: position of the token in its document.
        length: length of its document.
    """

    document: Tensor
    position: Tensor
    length: Tensor

    @classmethod
    def from_microbatch(cls, batch: Microbatch) -> Layout:
        """Return the layout of a microbatch, packed or padded."""
        if batch.attention_mask is None:
            assert batch.cu_seqlens is not None
            lengths = batch.cu_seqlens[: batch.num_segments + 1].diff().long()
            document = torch.full(batch.input_ids.shape, -1)
            document[: int(lengths.sum())] = torch.arange(len(lengths)).repeat_interleave(lengths)
            starts = lengths.cumsum(0) - lengths
            position = torch.arange(len(document)) - starts[document]
            return cls(document, position, lengths[document])
        rows, width = batch.input_ids.shape
        row, mask = torch.arange(rows)[:, None].expand(rows, width), batch.attention_mask
        position = torch.arange(width).expand(rows, width)
        length = mask.sum(1, keepdim=True).expand(rows, width)
        return cls(torch.where(mask, row, -1).flatten(), position.flatten(), length.flatten())

    @property
    def is_token(self) -> Tensor:
        """Tokens that are not padding, bool [tokens]."""
        return self.document >= 0

    @property
    def is_late(self) -> Tensor:
        """Tokens in the second half of their document, bool [tokens]."""
        return self.position >= self.length // 2

    def documents(self) -> Iterator[Tensor]:
        """Yield the indices of the tokens of each document."""
        for number in range(int(self.document.max()) + 1):
            yield (self.document == number).nonzero().squeeze(1)


def with_other_tokens(batch: Microbatch, is_other: Tensor) -> Microbatch:
    """Replace each token of the flat mask `is_other` with another token that occurs in the microbatch."""
    known = batch.input_ids.unique()
    others = known[(torch.searchsorted(known, batch.input_ids) + 1) % len(known)]
    return replace(batch, input_ids=torch.where(is_other.view_as(batch.input_ids), others, batch.input_ids))


def with_lengths(batch: Microbatch, lengths: Sequence[int]) -> Microbatch:
    """Return a packed microbatch without padding whose documents have these lengths; their sum is the same.

    Tokens keep their position, and each example has as many documents as the largest one had. Labels are
    not updated.
    """
    assert batch.cu_seqlens is not None
    bounds = torch.full_like(batch.cu_seqlens, sum(lengths))
    bounds[0] = 0
    bounds[1 : len(lengths) + 1] = torch.tensor(lengths).cumsum(0)
    return replace(
        batch,
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=bounds,
        num_segments=len(lengths),
        sample_ids=torch.arange(len(lengths)),
        groups=group_texts(batch, len(lengths)),
    )


def max_texts_per_example(batch: Microbatch) -> int:
    """Return the largest number of texts in an example of the microbatch."""
    return int(batch.groups[batch.groups >= 0].bincount().max())


def group_texts(batch: Microbatch, num_texts: int) -> Tensor:
    """Return `Microbatch.groups` for `num_texts` texts, in examples as large as the largest in `batch`."""
    groups = torch.full((max(len(batch.groups), num_texts),), -1)
    groups[:num_texts] = torch.arange(num_texts) // max_texts_per_example(batch)
    return groups


def with_edge_lengths(batch: Microbatch, reach: int) -> Microbatch:
    """Return a full microbatch with documents of `EDGES` tokens and of reach + 2 tokens, if there is room.

    In a document of reach + 2 tokens, exactly two pairs of tokens are outside a window of this reach. Padded
    rows keep their tokens and are masked after these lengths.
    """
    if batch.cu_seqlens is not None:
        slots = len(batch.cu_seqlens) - 1
        return with_lengths(batch, edge_lengths(batch.input_ids.numel(), slots, batch.max_seqlen, reach))
    rows, width = batch.input_ids.shape
    wanted = [length for length in (width - width // 4, reach + 2, *EDGES) if 0 < length <= width]
    lengths = torch.tensor([wanted[row % len(wanted)] for row in range(rows)])
    mask = torch.arange(width) < lengths[:, None]
    return replace(batch, attention_mask=mask, num_tokens=int(mask.sum()))


def edge_lengths(total: int, slots: int, longest: int, reach: int) -> list[int]:
    """Return at most `slots` document lengths, each up to `longest`, that sum to `total`.

    First come reach + 2 and `EDGES`, where they fit, then documents of `longest` tokens and a remainder.
    """
    lengths, left = list[int](), total
    for length in (reach + 2, *EDGES):
        rest = left - length
        if length <= longest and rest >= 0 and len(lengths) + 1 + ceil(rest / longest) <= slots:
            lengths.append(length)
            left = rest
    return [*lengths, *[longest] * (left // longest), *([left % longest] if left % longest else [])]
