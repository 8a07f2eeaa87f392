"""Packed rows of token sequences.

Shapes: T tokens of a packed row, K sequences in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Token sequences in one packed row, without padding between them.

    Attributes:
        input_ids: int64 [T]; the tokens after the last sequence are filler.
        position_ids: int64 [T], from 0 in each sequence.
        cu_seqlens: int32 [K + 1] cumulative lengths of the sequences; [K + 2] with filler at the end.
        lengths: tokens of each of the K sequences.
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    lengths: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the sequences, without filler."""
        return sum(self.lengths)

    @property
    def max_seqlen(self) -> int:
        """Length of the longest segment, filler included."""
        return max(*self.lengths, len(self.input_ids) - self.num_tokens)

    @property
    def inputs(self) -> dict[str, Any]:
        """Arguments of a model, by name."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "cu_seqlens": self.cu_seqlens,
            "max_seqlen": self.max_seqlen,
        }

    def token_types(self, second_starts: Sequence[int]) -> Tensor:
        """Return the token types [T]: 1 from `second_starts` [K] on in each sequence, else 0."""
        filler = len(self.input_ids) - self.num_tokens
        starts = np.repeat([*second_starts, filler], [*self.lengths, filler])
        return (self.position_ids >= torch.from_numpy(starts).to(self.position_ids.device)).long()

    def to(self, device: torch.device) -> PackedRow:
        """Return the packed row on a device, to which it is copied asynchronously from pinned memory."""
        if device.type == "cpu":
            return self
        ids, positions, bounds = (
            each.pin_memory().to(device, non_blocking=True)
            for each in (self.input_ids, self.position_ids, self.cu_seqlens)
        )
        return PackedRow(ids, positions, bounds, self.lengths)


def group_into_rows(lengths: Sequence[int], tokens_per_run: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of the sequences of each packed row, longest sequences first.

    A row holds at most tokens_per_run tokens, or one sequence that is longer. Sequences of similar length
    share a row, so that its maximum length is close to all of them, and the first row needs the most memory.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    start, total = 0, 0
    for position, index in enumerate(order):
        if position > start and total + sizes[index] > tokens_per_run:
            yield order[start:position]
            start, total = position, 0
        total += int(sizes[index])
    if start < len(order):
        yield order[start:]


def pack(sequences: Sequence[Tokens], filler_id: int = 0, multiple: int = 1) -> PackedRow:
    """Concatenate sequences to a packed row, filled up to a multiple of `multiple` tokens.

    A text without tokens becomes one filler token, so that it never shares the next text's first token.
    """
    sequences = [each if len(each) else np.array([filler_id], np.int64) for each in sequences]
    lengths = tuple(map(len, sequences))
    total = sum(lengths)
    filler = -total % multiple
    bounds = np.cumsum([0, *lengths, *([filler] if filler else [])]).astype(np.int32)
    ids = np.concatenate([*sequences, np.full(filler, filler_id, np.int64)])
    positions = np.concatenate([np.arange(length) for length in (*lengths, filler)])
    return PackedRow(torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(bounds), lengths)
