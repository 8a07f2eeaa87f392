"""Overlap of the splits and sources of a text, counted from digests of its rows.

Next to the files of a split that is written, `train.digests` has the digest of each row with text, and
`train.texts` has the digests of each row's compared texts, [rows, texts].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import BETWEEN_TEXTS, Row, RowFormat, text_digest, without_whitespace_and_case
from neobert.data.store.block_record import sum_counts
from neobert.tasks.specs import spec_of

DIGESTS, TEXTS = "digests", "texts"
DIGEST = np.dtype("<u8")
"""Type of a text digest in a file."""

MAX_ROWS = 1 << 20
"""Maximum number of rows per source in the comparison of sources; their digests take 16 MiB."""

Digests = NDArray[np.unsignedinteger]
Written = Sequence[tuple[Path, Mapping[str, Any]]]
"""Folders of a prepared text, or of its parts, each with the manifest entries of its splits by name."""


def compared_fields(config: RunConfig, rows: RowFormat) -> list[str]:
    """Return the fields whose texts are compared across rows; empty for tasks without pairs."""
    has_pairs = spec_of(config).predicts == "pairs"
    return [field.name for field in rows.fields if field.is_text] if has_pairs else []


def row_digest(key: str) -> bytes:
    """Return a digest of a row's texts, ignoring case and whitespace; empty for a row without text."""
    text = BETWEEN_TEXTS.join(map(without_whitespace_and_case, key.split(BETWEEN_TEXTS))).strip(BETWEEN_TEXTS)
    return text_digest(text) if text else b""


def compared_digests(row: Row, fields: Sequence[str]) -> bytes:
    """Return the concatenated digests of a row's compared fields, ignoring case and whitespace."""
    return b"".join(text_digest(without_whitespace_and_case(row[field])) for field in fields)


def count_overlap(splits: Mapping[str, dict[str, Any]], written: Written) -> None:
    """Add the copies in both splits and the texts that rows share to the counts of the splits."""
    compared = written[0][1].get("train", {})
    if DIGESTS in compared:
        training, evaluation = (_read_digests(name, written) for name in ("train", "eval"))
        in_training, of_evaluation = count_copies(training, np.concatenate([*evaluation]))
        splits["train"]["counts"]["copies_of_evaluation"] = in_training
        splits["eval"]["counts"]["copies_in_training"] = of_evaluation
    if TEXTS in compared:
        _count_shared_texts(splits, written)


def _read_digests(name: str, written: Written) -> Iterator[Digests]:
    """Yield the digests of the rows of a split, in pieces."""
    for folder, _ in written:
        with (folder / f"{name}.{DIGESTS}").open("rb") as file:
            while piece := file.read(MAX_ROWS * DIGEST.itemsize):
                yield np.frombuffer(piece, DIGEST)
    yield np.empty(0, DIGEST)


def count_copies(training: Iterable[Digests], evaluation: Digests) -> tuple[int, int]:
    """Return the number of training rows that are in evaluation, and of evaluation rows in training."""
    known, sizes = np.unique(evaluation, return_counts=True)
    in_training, is_found = 0, np.zeros(len(known), dtype=np.bool_)
    for digests in training if len(known) else ():
        places = np.minimum(np.searchsorted(known, digests), len(known) - 1)
        is_copy = known[places] == digests
        in_training += int(is_copy.sum())
        is_found[places[is_copy]] = True
    return in_training, int(sizes[is_found].sum())


def _count_shared_texts(splits: Mapping[str, dict[str, Any]], written: Written) -> None:
    """Count training pairs with a text of another source, and evaluation pairs with a training text."""
    counts = splits["train"]["counts"]
    sources = _read_text_digests("train", written)
    counts["texts_of_other_sources"], counts["texts_compared"] = _count_rows_sharing_text(
        [np.concatenate([piece[:MAX_ROWS] for piece in each])[:MAX_ROWS] for each in sources]
    )
    if "eval" in splits:
        rows = np.concatenate([each for source in _read_text_digests("eval", written) for each in source])
        is_found = np.zeros(rows.shape, dtype=np.bool_)
        for block in (block for source in sources for block in source):
            for start in range(0, len(block), MAX_ROWS):
                is_found |= np.isin(rows, block[start : start + MAX_ROWS])
        splits["eval"]["counts"]["texts_in_training"] = int(is_found.any(axis=1).sum())


def _count_rows_sharing_text(sources: Sequence[Digests]) -> tuple[int, int]:
    """Return the number of rows [rows, texts] with a text of another source, and the number of all rows."""
    shared = 0
    for index, rows in enumerate(sources):
        others = [each.ravel() for each in (*sources[:index], *sources[index + 1 :])]
        shared += int(np.isin(rows, np.concatenate(others)).any(axis=1).sum()) if others else 0
    return shared, sum(map(len, sources))


def _read_text_digests(name: str, written: Written) -> list[list[Digests]]:
    """Return the digests [rows, texts] of the blocks of each corpus, in the order of the text."""
    blocks = sorted(_read_block_digests(name, written), key=lambda each: each[:2])
    corpora = sorted({corpus for corpus, *_ in blocks})
    return [[rows for corpus, _, rows in blocks if corpus == each] for each in corpora]


def _read_block_digests(name: str, written: Written) -> Iterator[tuple[int, int, Digests]]:
    """Yield (corpus, position in the text, digests [rows, texts]) of the blocks with rows."""
    for folder, splits in written:
        records = splits[name]["blocks"]
        sizes = [sum_counts([record]).documents for record in records]
        if not sum(sizes):
            continue
        rows = np.memmap(folder / f"{name}.{TEXTS}", DIGEST, "r").reshape(sum(sizes), -1)
        for record, piece in zip(records, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
            if len(piece):
                yield record["corpus"], record["index"], piece
