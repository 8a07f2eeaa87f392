"""The first conversation of prepared text as text, with its supervised parts."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from neobert.data.store.segment_store import SegmentStore
from neobert.data.tokenize.encoding import SUPERVISED
from neobert.data.tokenize.tokenizers import TokenizerBundle

MAX_CHARACTERS = 2000
Piece = tuple[str, bool]


def sample_of(store: SegmentStore, tokenizer: TokenizerBundle) -> list[Piece]:
    """Return the first segment as (text, is supervised) pieces; empty for a store without such marks."""
    if SUPERVISED.name not in store.column_names:
        return []
    first = store.gather(np.zeros(1, dtype=np.int64))
    ids = first.ids[: first.lengths[0]].tolist()
    marks = first.columns[SUPERVISED.name].astype(bool).tolist()
    pieces, room = [], MAX_CHARACTERS
    for is_supervised, run in groupby(range(len(ids)), lambda place: marks[place]):
        text = str(
            tokenizer.tokenizer.decode([ids[place] for place in run], clean_up_tokenization_spaces=False)
        )
        pieces.append((text if len(text) <= room else f"{text[:room]} ...", is_supervised))
        room -= len(text)
        if room <= 0:
            break
    return pieces
