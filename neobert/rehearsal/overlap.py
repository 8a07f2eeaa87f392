"""Documents that are in the text to train on and in the evaluation's as well, word for word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neobert.data.store.prepare import PreparedData
from neobert.data.store.token_store import TokenStore

MOST_DOCUMENTS = 200_000


def train_eval_overlap(prepared: PreparedData) -> dict[str, Any] | None:
    """Count the evaluation's tokens whose document is in the training text; None without an evaluation.

    Of a large text a part is compared, spread over the whole of it; of a stream its first window.
    """
    if prepared.eval is None:
        return None
    train = _documents(prepared)
    if train is None:
        return None
    wanted: dict[int, int] = {}
    for document in _contents(prepared.eval, MOST_DOCUMENTS):
        wanted[hash(document)] = wanted.get(hash(document), 0) + len(document)
    shared, compared = set[int](), 0
    for document in _contents(train, MOST_DOCUMENTS):
        compared += 1
        if hash(document) in wanted:
            shared.add(hash(document))
    return {
        "eval_documents": min(len(prepared.eval), MOST_DOCUMENTS),
        "train_documents": compared,
        "shared_share": sum(wanted[each] for each in shared) / max(1, sum(wanted.values())),
    }


def _documents(prepared: PreparedData) -> TokenStore | None:
    if isinstance(prepared.train, TokenStore):
        return prepared.train
    window = prepared.train.read_window(None, 0)
    return None if window is None else window.store


def _contents(store: TokenStore, most: int) -> Iterator[bytes]:
    """Yield the tokens of documents, in 64 bits whatever the store has them in."""
    stride = -(-len(store) // most)
    for number in range(0, len(store), stride):
        yield store.tokens[store.offsets[number] : store.offsets[number + 1]].astype("<i8").tobytes()
