"""Assembly of microbatches: segments are gathered, labelled and laid out as tensors.

Shapes: T tokens and K segments (empty ones included) of a packed microbatch, B padded rows of length S.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neobert.data.batches.shape import BatchShape
from neobert.data.batches.targets import IGNORED, TargetRule, Targets, check_targets
from neobert.data.batches.windows import Cursor
from neobert.data.store.segment_store import Segments, SegmentStore
from neobert.data.tokenize.encoding import SCORE, SECOND
from neobert.errors import ProjectError

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Microbatch:
    """Tensors for one forward pass.

    Packed: `input_ids`, `labels`, `position_ids` int64 [T]; `cu_seqlens` int32 [K + 1], its last entries
    repeating T; `attention_mask` None. Padding at the end forms separate segments without targets.
    Padded rows: the same names int64 [B, S], `attention_mask` bool [B, S], `cu_seqlens` None.
    `token_type_ids` are laid out like `input_ids`; None: all tokens have type 0.
    If labels are per segment, `labels` is [K] or [B], int64 or float32; so is `groups`.

    Attributes:
        labels: targets; -100 elsewhere, or NaN for float labels.
        max_seqlen: upper bound of the segment lengths in tokens, the same for every microbatch.
        num_tokens: number of tokens without padding.
        num_targets: number of tokens or segments to predict; may be zero.
        num_segments: number of documents, or of pieces after `split_segments` or in split documents.
        sample_ids: int64, one for each segment as it was built, see `SegmentStore.gather`.
        groups: int64, the example of each segment, counted from 0 in the microbatch; -1 for padding. The
            texts of an example follow each other.
        scores: score of each segment, float32, laid out like `groups`; NaN for a segment without a
            score. None: the task has no scores.
        masked_ids: the tokens with masks, laid out like `input_ids`. None: the task has no masked words.
        masked_labels: targets of `masked_ids`, laid out like it; -100 elsewhere.
        cursor: position in the data after every rank has used its microbatch of this round.
        collate_ms: time to build this microbatch in milliseconds, pinning included.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor | None
    attention_mask: Tensor | None
    max_seqlen: int
    num_tokens: int
    num_targets: int
    num_segments: int
    sample_ids: Tensor
    groups: Tensor
    cursor: Cursor
    token_type_ids: Tensor | None = None
    scores: Tensor | None = None
    masked_ids: Tensor | None = None
    masked_labels: Tensor | None = None
    collate_ms: float = 0.0

    @property
    def num_masked(self) -> int:
        """Number of targets in `masked_labels`; 0 if the task has no masked words."""
        return 0 if self.masked_labels is None else int((self.masked_labels != IGNORED).sum())

    @property
    def starts_example(self) -> Tensor:
        """True for the first segment of each example, bool, laid out like `groups`."""
        before = torch.cat([self.groups.new_tensor([-1]), self.groups[:-1]])
        return (self.groups >= 0) & (self.groups != before)

    def label_all_examples(self) -> Microbatch:
        """Return a copy with label 0 for the first segment of every example, and -100 for the others."""
        is_first = self.starts_example
        return replace(self, labels=torch.where(is_first, 0, IGNORED), num_targets=int(is_first.sum()))

    def to(self, device: torch.device | str) -> Microbatch:
        """Return a copy on a device; from pinned memory, the host does not wait for the copy."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Microbatch:
        """Return a copy in pinned memory."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def split_segments(self, length: int) -> Microbatch:
        """Cut the segments of a packed microbatch into pieces of `length` tokens, isolated like segments.

        Tokens and labels stay; a piece's positions start at 0, and `sample_ids` still number documents.
        """
        assert self.cu_seqlens is not None
        positions = self.position_ids % length
        starts = torch.nonzero(positions == 0)[:, 0]
        bounds = torch.full_like(self.cu_seqlens, len(positions))
        assert len(starts) < len(bounds), "the shape bounds the cuts"
        bounds[: len(starts)] = starts
        whole = torch.searchsorted(self.cu_seqlens[1:], starts.int(), right=True)
        groups = torch.full_like(self.groups, -1)
        groups[: len(starts)] = self.groups[whole]
        cut = replace(
            self,
            position_ids=positions,
            cu_seqlens=bounds,
            num_segments=int((starts < self.num_tokens).sum()),
            groups=groups,
        )
        return cut.pin_memory() if self.position_ids.is_pinned() else cut

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> Microbatch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {n: change(t) for n, t in values.items() if isinstance(t, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Assembler:
    """Builds microbatches of one shape.

    Attributes:
        types_pairs: give tokens of the second text of a pair type 1.
    """

    shape: BatchShape
    rule: TargetRule
    seed: int
    pad_id: int
    vocab_size: int
    pad_to_multiple_of: int | None = None
    types_pairs: bool = False

    def build(
        self, store: SegmentStore, examples: Ids, sample_offset: int | Ids, epoch: int, cursor: Cursor
    ) -> Microbatch:
        """Build a microbatch from `examples`, int64 [n] indices into the store; n may be 0.

        `sample_offset`: see `SegmentStore.gather`. Raises DAT002 for a token id outside the vocabulary, and
        DAT020 for targets of another shape or dtype.
        """
        gathered = store.gather(examples, sample_offset)
        self._check_token_ids(gathered.ids)
        targets = self.rule.targets(gathered, epoch=epoch, seed=self.seed)
        check_targets(self.rule, targets, gathered)
        layout = self._packed_tensors if self.shape.is_packed else self._padded_tensors
        extra_values = self._optional_token_values(targets, gathered)
        tensors = layout(targets, gathered.positions, gathered.lengths, extra_values)
        slots = self.shape.num_slots if self.shape.is_packed else len(tensors["input_ids"])
        scores = gathered.columns.get(SCORE.name)
        return Microbatch(
            **tensors,
            num_tokens=len(gathered.ids),
            num_targets=int(np.count_nonzero(is_target(targets.labels))),
            num_segments=len(gathered.lengths),
            sample_ids=torch.from_numpy(gathered.samples),
            groups=_pad_to_size(gathered.groups, slots, -1),
            scores=None if scores is None else _pad_to_size(scores, slots, float("nan")),
            cursor=cursor,
        )

    def _check_token_ids(self, ids: Ids) -> None:
        limit = self.vocab_size
        if len(ids) and int(ids.max()) >= limit:
            raise ProjectError(
                "DAT002",
                f"the prepared data has token id {int(ids.max()):,}, but the vocabulary size is {limit:,}",
                "prepare the data again with this tokenizer",
            )

    def _optional_token_values(self, targets: Targets, segments: Segments) -> Mapping[str, tuple[Ids, int]]:
        """Return (values, padding value) of optional tensors: token types, masked ids and labels."""
        found = {}
        if self.types_pairs and SECOND.name in segments.columns:
            seconds = np.repeat(segments.columns[SECOND.name], segments.lengths)
            found["token_type_ids"] = (segments.positions >= seconds).astype(np.int64), 0
        if targets.masked is not None:
            found["masked_ids"] = targets.masked.input_ids, self.pad_id
            found["masked_labels"] = targets.masked.labels, IGNORED
        return found

    def _packed_tensors(
        self, targets: Targets, positions: Ids, lengths: Ids, extra_values: Mapping[str, tuple[Ids, int]]
    ) -> dict[str, Any]:
        input_ids = targets.input_ids
        total = self.shape.capacity
        padding = total - len(input_ids)
        tail = np.arange(padding) % self.shape.row_length
        ends = [
            0,
            *np.cumsum(lengths).tolist(),
            *range(len(input_ids) + self.shape.row_length, total, self.shape.row_length),
        ]
        assert len(ends) <= self.shape.num_slots + (padding == 0), "the packer bounds the segments"
        cu_seqlens = np.full(self.shape.num_slots + 1, total, dtype=np.int32)
        cu_seqlens[: len(ends)] = ends
        return {
            "input_ids": _pad_to_size(input_ids, total, self.pad_id),
            "labels": _pad_to_size(
                targets.labels,
                total if self.rule.labels_tokens else self.shape.num_slots,
                ignored_label(targets.labels),
            ),
            "position_ids": torch.from_numpy(np.concatenate((positions, tail))),
            "cu_seqlens": torch.from_numpy(cu_seqlens),
            "attention_mask": None,
            "max_seqlen": self.shape.row_length,
            **{name: _pad_to_size(values, total, filler) for name, (values, filler) in extra_values.items()},
        }

    def _padded_tensors(
        self, targets: Targets, positions: Ids, lengths: Ids, extra_values: Mapping[str, tuple[Ids, int]]
    ) -> dict[str, Any]:
        width = self._row_width(lengths)
        is_token = np.arange(width)[None, :] < lengths[:, None]
        if len(lengths) == 0:
            is_token = np.zeros((1, width), dtype=np.bool_)

        def rows(values: NDArray[Any], filler: float) -> Tensor:
            grid = np.full(is_token.shape, filler, dtype=values.dtype)
            grid[is_token] = values
            return torch.from_numpy(grid)

        return {
            "input_ids": rows(targets.input_ids, self.pad_id),
            "labels": rows(targets.labels, ignored_label(targets.labels))
            if self.rule.labels_tokens
            else _pad_to_size(targets.labels, len(is_token), ignored_label(targets.labels)),
            "position_ids": rows(positions, 0),
            "cu_seqlens": None,
            # Without a segment there is one row of padding, and it must attend to something.
            "attention_mask": torch.from_numpy(is_token if len(lengths) else ~is_token),
            "max_seqlen": self.shape.row_length,
            **{name: rows(values, filler) for name, (values, filler) in extra_values.items()},
        }

    def _row_width(self, lengths: Ids) -> int:
        """Return the row width: the maximum length, padded to `pad_to_multiple_of`, at most `row_length`."""
        longest = int(lengths.max(initial=1))
        multiple = self.pad_to_multiple_of or 1
        return max(longest, min(-(-longest // multiple) * multiple, self.shape.row_length))


def ignored_label(labels: NDArray[Any]) -> float:
    """Return the label that the loss ignores: -100, or NaN for floats."""
    return IGNORED if labels.dtype == np.int64 else float("nan")


def is_target(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a bool mask of the labels that enter the loss."""
    is_label: NDArray[np.bool_] = labels != IGNORED if labels.dtype == np.int64 else ~np.isnan(labels)
    return is_label


def _pad_to_size(values: NDArray[Any], size: int, filler: float) -> Tensor:
    whole = np.full(size, filler, dtype=values.dtype)
    whole[: len(values)] = values
    return torch.from_numpy(whole)
