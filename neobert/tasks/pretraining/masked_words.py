"""A few masked words of the evaluation text, which the model predicts.

They show what a loss means: the texts are the same in every evaluation, and in every run on the same
prepared text. The model runs on rows that nothing else reads, and draws no random number.

Shapes: K texts of L tokens, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from neobert.data.batches.stateless_random import random_words, stream_key
from neobert.data.store.segment_store import SegmentStore
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.families.backbone import Backbone
from neobert.printable import printable
from neobert.runfiles.samples import LONGEST, Guess, MaskedText

NUM_TEXTS, NUM_GUESSES = 4, 3
NUM_TOKENS = 24
"""Tokens of a text: four such rows take less than a hundredth of the time of a small evaluation."""
CANDIDATES_PER_TEXT = 4
SHORTEST_WORD = 4
"""Minimum letters of a word: shorter ones, such as "of", can be guessed without the text."""
FEWEST_WORDS = 4
"""Minimum maskable words in a text, if any has that many: others are mostly numbers and signs."""
_WORD_STREAM = 0x776F7264


@dataclass(frozen=True, eq=False)
class MaskedWords:
    """Texts with one masked word each.

    Attributes:
        ids: int64 [K, L], with the words replaced by the mask token.
        positions: positions of the words in their rows.
        word_ids: int64 [W], ids that can be guessed: neither special tokens nor fillers of the vocabulary.
    """

    tokenizer: PreTrainedTokenizerFast
    texts: list[MaskedText]
    ids: Tensor
    positions: list[int]
    word_ids: Tensor

    @torch.no_grad()
    def guesses(self, backbone: Backbone, device: torch.device) -> list[list[Guess]]:
        """Return the `NUM_GUESSES` most probable tokens at each masked word; none if logits are NaN."""
        # A compiled block would be compiled again for this shape.
        with torch.compiler.set_stance("force_eager"):
            states = [backbone.plain(ids) for ids in self.ids.to(device)]
        assert backbone.head is not None
        rows = torch.stack([each[position] for each, position in zip(states, self.positions, strict=True)])
        word_ids = self.word_ids.to(device)
        rows = backbone.head(rows)[:, word_ids].float()
        found = rows.softmax(-1).topk(min(NUM_GUESSES, rows.shape[-1]))
        return [
            [
                Guess(_decode(self.tokenizer, [token]), round(probability, 4))
                for token, probability in zip(tokens, probabilities, strict=True)
                if math.isfinite(probability)
            ]
            for tokens, probabilities in zip(
                word_ids[found.indices].tolist(), found.values.tolist(), strict=True
            )
        ]


def mask_words(store: SegmentStore, tokenizer: TokenizerBundle) -> MaskedWords | None:
    """Mask a word in each of a few texts; return None if no word of the texts is a single token."""
    last = store.num_segments - 1
    segments = np.unique(np.linspace(0, last, NUM_TEXTS * CANDIDATES_PER_TEXT).astype(np.int64)).tolist()
    texts_of = {segment: store.segment(segment) for segment in segments}
    length = min(NUM_TOKENS, int(np.median([len(text) for text in texts_of.values()])))
    rows = {
        segment: text[:length].astype(np.int64) for segment, text in texts_of.items() if len(text) >= length
    }
    words = {segment: list(_whole_word_positions(ids, tokenizer)) for segment, ids in rows.items()}
    most = max(map(len, words.values()))
    if not most:
        return None
    usable = [segment for segment, positions in words.items() if len(positions) >= min(most, FEWEST_WORDS)]
    chosen = [usable[index] for index in np.unique(np.linspace(0, len(usable) - 1, NUM_TEXTS).astype(int))]
    draws = random_words(stream_key(_WORD_STREAM), np.array(chosen))
    positions = [words[each][int(draw) % len(words[each])] for each, draw in zip(chosen, draws, strict=True)]
    ids = np.stack([rows[segment] for segment in chosen])
    texts = [
        _masked_text(row, position, tokenizer.tokenizer) for row, position in zip(ids, positions, strict=True)
    ]
    ids[np.arange(len(positions)), positions] = tokenizer.mask_id
    word_ids = torch.from_numpy(tokenizer.random_ids)
    return MaskedWords(tokenizer.tokenizer, texts, torch.from_numpy(ids), positions, word_ids)


def _whole_word_positions(ids: NDArray[np.int64], tokenizer: TokenizerBundle) -> Iterator[int]:
    """Yield the positions of tokens that are a whole word with text before and after."""
    for position in range(len(ids) // 4, len(ids) - 1):
        word = tokenizer.tokenizer.decode([ids[position]]).strip()
        if not tokenizer.is_maskable[ids[position]] or len(word) < SHORTEST_WORD or not word.isalpha():
            continue
        around = tokenizer.tokenizer.decode(ids[max(0, position - 1) : position + 2])
        if re.search(rf"(?<!\w){word}(?!\w)", around):
            yield position


def _masked_text(ids: NDArray[np.int64], position: int, tokenizer: PreTrainedTokenizerFast) -> MaskedText:
    before, word, after = (
        _decode(tokenizer, part.tolist())
        for part in (ids[:position], ids[position : position + 1], ids[position + 1 :])
    )
    return MaskedText(before, word, after)


def _decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=len(ids) > 1)
    return printable(text.strip())[:LONGEST]
