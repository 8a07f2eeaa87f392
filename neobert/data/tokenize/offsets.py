"""Token ids with the characters that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenize.encoding import BATCH_DOCUMENTS, TOKENISED_CHARACTERS, SegmentEncoder, batched

Ids = NDArray[np.int64]
Offsets = NDArray[np.int64]


def tokenize_with_offsets(encoder: SegmentEncoder, texts: Iterable[str]) -> Iterator[tuple[Ids, Offsets]]:
    """Yield the token ids [T] of each text, and the character offsets (start, end) of each token, [T, 2].

    Special tokens are not added. The offsets may include a space before a word.
    """
    for batch in batched(texts, BATCH_DOCUMENTS, TOKENISED_CHARACTERS, len):
        for encoding in encoder.encode_texts(list(batch), has_offsets=True):
            yield np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2)
