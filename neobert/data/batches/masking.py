"""Masked-language-model targets, drawn with stateless counter-based random numbers.

The masking of a token depends only on the seed, the epoch, its segment and its position in the segment, not
on the microbatch, the rank, the thread or earlier draws.
The proportions follow BERT (Devlin et al., 2019, section 3.1): 80 % of the chosen tokens are replaced
by the mask token and 10 % by a random token; 10 % stay unchanged.

Shapes: T tokens, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neobert.data.batches.stateless_random import mix_bits, stream_key
from neobert.data.batches.targets import IGNORED, Targets
from neobert.data.store.segment_store import Segments

EVALUATION_EPOCH = -1
_MASK_STREAM = 0x6D61736B
_TWO_32 = 1 << 32
_SHARE_MASKED = np.uint64(int(0.8 * _TWO_32))
_SHARE_MASKED_OR_RANDOM = np.uint64(int(0.9 * _TWO_32))
_HALF = np.uint64(32)
_LOW = np.uint64(_TWO_32 - 1)
_SECOND_DRAW = np.uint64(0xD1B54A32D192ED03)


@dataclass(frozen=True, slots=True)
class MaskingRule:
    """Parameters of masking.

    Attributes:
        probability: share of the maskable tokens that become targets in training, in (0, 1].
        mask_all: replace every target with the mask token; else 80/10/10.
        mask_id: id of the mask token.
        random_ids: int64 [n], token ids from which random replacements are drawn.
        is_maskable: bool [V], false for special and inert (unused) tokens.
        eval_probability: the same share in evaluations; None: as in training.
    """

    probability: float
    mask_all: bool
    mask_id: int
    random_ids: NDArray[np.int64]
    is_maskable: NDArray[np.bool_]
    eval_probability: float | None = None

    @property
    def labels_tokens(self) -> bool:
        """True, since labels are per token."""
        return True

    def probability_in(self, epoch: int) -> float:
        """Return the share of the maskable tokens that become targets; the epoch of an evaluation is -1."""
        if epoch == EVALUATION_EPOCH and self.eval_probability is not None:
            return self.eval_probability
        return self.probability

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:
        """Mask the tokens that a hash of seed, epoch, sample id and position selects."""
        samples = np.repeat(segments.samples, segments.lengths)
        return Targets(
            *mask_tokens(segments.ids, samples, segments.positions, epoch=epoch, seed=seed, rule=self)
        )


def mask_tokens(
    ids: NDArray[np.int64],
    sample_ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    *,
    epoch: int,
    seed: int,
    rule: MaskingRule,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (input_ids, labels), int64 [T] both; labels are -100 except at targets.

    `sample_ids` and `positions` are int64 [T]: the sample id of each token and its position in that sample.
    """
    draws = _token_random_words(stream_key(_MASK_STREAM, seed, epoch), sample_ids, positions)
    chosen = (draws >> _HALF) < np.uint64(round(rule.probability_in(epoch) * _TWO_32))
    targets = np.flatnonzero(chosen & rule.is_maskable[ids])
    labels = np.full_like(ids, IGNORED)
    labels[targets] = ids[targets]
    input_ids = ids.copy()
    input_ids[targets] = _replacement_ids(ids[targets], draws[targets], rule)
    return input_ids, labels


def _token_random_words(
    key: int, sample_ids: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.uint64]:
    # Sample and position share a word: 40 bits of samples and 24 of positions until two tokens share a draw.
    words = (sample_ids.astype(np.uint64) << np.uint64(24)) + positions.astype(np.uint64)
    return mix_bits(mix_bits(words ^ np.uint64(key)) + np.uint64(key))


def _replacement_ids(
    ids: NDArray[np.int64], draws: NDArray[np.uint64], rule: MaskingRule
) -> NDArray[np.int64]:
    if rule.mask_all:
        return np.full_like(ids, rule.mask_id)
    fates = mix_bits(draws ^ _SECOND_DRAW)
    picks = ((fates & _LOW) * np.uint64(len(rule.random_ids))) >> _HALF
    is_mask = (fates >> _HALF) < _SHARE_MASKED
    is_random = ~is_mask & ((fates >> _HALF) < _SHARE_MASKED_OR_RANDOM)
    return np.where(is_mask, rule.mask_id, np.where(is_random, rule.random_ids[picks], ids))
