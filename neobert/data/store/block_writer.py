"""Writer of the splits of a text, block by block, with digests that identify copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from neobert.data.sources.rows import Row, RowFormat
from neobert.data.store.block_record import BlockRecord
from neobert.data.store.overlap import DIGEST, DIGESTS, TEXTS, compared_digests, row_digest
from neobert.data.store.split_writer import HashedFile, SplitWriter
from neobert.data.store.token_store import convert_write_errors
from neobert.data.tokenize.encoding import Encoder
from neobert.data.tokenize.encoding_pool import encode_sources
from neobert.progress import Progress

SPLIT_NAMES = {"train": "training", "eval": "evaluation"}
BLOCK_VALUES = ("num_blocks", "blocks", DIGESTS, TEXTS)
"""Values of a manifest entry that only a text in parts needs."""


@dataclass(frozen=True)
class BlockRows:
    """Rows of a block, and its position among all blocks of its split; `label` names it in messages."""

    index: int
    key: str
    rows: Iterable[Row]
    label: str = ""
    corpus: int = 0


@dataclass(frozen=True)
class SplitRows:
    """The blocks of a split to write, of `num_blocks` of the whole text.

    Attributes:
        documents: number of documents, for progress messages; None if unknown.
        budget: tokens per block after which no further batch is written.
    """

    num_blocks: int
    blocks: Sequence[BlockRows]
    documents: int | None = None
    budget: float = inf


@dataclass(frozen=True)
class BlockWriter:
    """Writer of the splits of a text into `folder`.

    Attributes:
        splits: names of the splits that are written, which decides what is compared.
        rows: format of the rows; rows with equal keys are copies.
        compared: fields whose texts are compared across rows.
        num_proc: processes that tokenize.
        on_progress: called after each batch.
    """

    folder: Path
    splits: Collection[str]
    encoder: Encoder
    rows: RowFormat
    compared: Sequence[str] = ()
    num_proc: int = 1
    on_progress: Callable[[], None] = lambda: None

    def write(self, name: str, split: SplitRows) -> dict[str, Any]:
        """Write a split; return its manifest entry, with its blocks and its files of digests."""
        records = [BlockRecord(each.index, each.key, each.corpus, self.encoder) for each in split.blocks]
        progress = Progress(f"preparing the {SPLIT_NAMES[name]} text", "documents", split.documents)
        with ExitStack() as stack:
            writer = stack.enter_context(closing(self._open_writer(name)))
            digests = {
                kind: stack.enter_context(closing(self._open_digest_file(name, kind)))
                for kind in self._digest_kinds
            }
            sources = [
                (
                    block.label,
                    _rows_until_full(self._write_digests(block.rows, digests), record, split.budget),
                )
                for block, record in zip(split.blocks, records, strict=True)
            ]
            for place, encoded in encode_sources(sources, self.encoder, self.num_proc):
                if records[place].counts.tokens >= split.budget:
                    continue  # several processes read ahead
                records[place].add(encoded)
                writer.append(encoded)
                self.on_progress()
                progress.advance(encoded.counts.documents)
            with convert_write_errors(self.folder):
                described = writer.finish() | {kind: file.finish() for kind, file in digests.items()}
        blocks = [record.finish() for record in records]
        return described | {"num_blocks": split.num_blocks, "blocks": blocks}

    @property
    def _digest_kinds(self) -> list[str]:
        kinds = [DIGESTS] if {"train", "eval"} <= {*self.splits} else []
        return kinds + ([TEXTS] if self.compared and "train" in self.splits else [])

    def _open_writer(self, name: str) -> SplitWriter:
        return SplitWriter(self.folder, name, self.encoder.dtype, self.encoder.columns)

    def _open_digest_file(self, name: str, kind: str) -> HashedFile:
        with convert_write_errors(self.folder):
            return HashedFile(self.folder / f"{name}.{kind}")

    def _write_digests(self, rows: Iterable[Row], files: Mapping[str, HashedFile]) -> Iterator[Row]:
        """Yield rows unchanged, and write the digests of their texts."""
        for row in rows:
            with convert_write_errors(self.folder):
                for kind, file in files.items():
                    is_text = kind == TEXTS
                    found = (
                        compared_digests(row, self.compared) if is_text else row_digest(self.rows.key(row))
                    )
                    file.write(np.frombuffer(found, DIGEST))
            yield row


def _rows_until_full(rows: Iterable[Row], record: BlockRecord, budget: float) -> Iterator[Row]:
    return takewhile(lambda _: record.counts.tokens < budget, rows)
