"""Token ids with the characters that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from neobert.data.tokenize.encoding import BATCH_DOCUMENTS, TOKENISED_CHARACTERS, batched

Ids = NDArray[np.int64]


def with_offsets(
    backend: Tokenizer, texts: Iterable[str], *, reads_special: bool = True
) -> Iterator[tuple[Ids, Ids]]:
    """Yield the token ids [T] of each text, and the bounds of each token in its characters, [T, 2].

    Special tokens are not added. The bounds may include a space before a word. Without `reads_special`,
    a special token that a text spells, such as "[SEP]", is plain text.
    """
    for batch in batched(texts, BATCH_DOCUMENTS, TOKENISED_CHARACTERS, len):
        before = backend.encode_special_tokens
        # Set for each batch: the tokenizer is shared, and its pickle, which workers receive, leaves this out.
        backend.encode_special_tokens = before or not reads_special
        try:
            encodings = backend.encode_batch(list(batch), add_special_tokens=False)
        finally:
            backend.encode_special_tokens = before
        for encoding in encodings:
            yield np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2)
