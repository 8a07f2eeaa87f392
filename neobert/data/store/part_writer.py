"""Writer of a part of prepared text; `neobert.runfiles.prepared_parts` describes the folder.

The rows may come from anywhere: `neobert.data.store.part` reads the blocks of a run's text.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neobert.data.sources.rows import Row, RowFormat
from neobert.data.store.block_record import BlockRecord
from neobert.data.store.build import SPLIT_NAMES, TOKENIZER_FOLDER, manifest_of
from neobert.data.store.overlap import DIGEST, digests_of, noting
from neobert.data.store.split_writer import HashedFile, SplitWriter
from neobert.data.store.token_store import write_manifest, writing
from neobert.data.tokenize.encoding import Encoder
from neobert.data.tokenize.encoding_pool import encode_each
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.progress import Progress
from neobert.runfiles.prepared_parts import PART_FORMAT, PartNumber


@dataclass(frozen=True)
class BlockRows:
    """Rows of a block, and its place among all blocks of its split; `label` names it in messages."""

    index: int
    key: str
    rows: Iterable[Row]
    label: str = ""
    corpus: int = 0


@dataclass(frozen=True)
class PartSplit:
    """The blocks of a split that a part holds, of `num_blocks` of the whole text.

    `documents` is their number, for the progress; None if it is unknown.
    """

    num_blocks: int
    blocks: Sequence[BlockRows]
    documents: int | None = None


@dataclass(frozen=True)
class PartWriter:
    """Writer of one part.

    Attributes:
        output: folder of all parts.
        request: everything that the tokens depend on, as JSON values: equal for all parts.
        rows: format of the rows, whose key tells copies.
        compared: fields of the texts that are compared between sources, see `SharedTexts`.
        num_proc: processes that tokenize.
        on_progress: called after each batch.
    """

    output: Path
    part: PartNumber
    request: dict[str, Any]
    tokenizer: TokenizerBundle
    encoder: Encoder
    rows: RowFormat
    compared: Sequence[str] = ()
    num_proc: int = 1
    on_progress: Callable[[], None] = lambda: None

    @property
    def folder(self) -> Path:
        """Folder of the part."""
        return self.output / self.part.folder

    def write(
        self, splits: Mapping[str, PartSplit], check: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> dict[str, Any]:
        """Write the part and return its manifest.

        `check` may refuse the manifest before the part is published. After an error, nothing is left.
        """
        partial = self.folder.with_name(f".{self.folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # left over from a killed process
        try:
            with writing(partial):
                partial.mkdir(parents=True)
                self.tokenizer.save(partial / TOKENIZER_FOLDER)
            has_copies = splits.keys() >= {"train", "eval"}
            manifest = self._manifest(
                {name: self._split(partial, name, each, has_copies) for name, each in splits.items()}
            )
            check(manifest)
            write_manifest(partial, manifest)
            with writing(self.folder):
                partial.rename(self.folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return manifest

    def _split(self, folder: Path, name: str, split: PartSplit, has_copies: bool) -> dict[str, Any]:
        records = [BlockRecord(each.index, each.key, each.corpus, self.encoder) for each in split.blocks]
        progress = Progress(f"preparing the {SPLIT_NAMES[name]} text", "documents", split.documents)
        writer = SplitWriter(folder, name, self.encoder.dtype, self.encoder.columns)
        try:
            with (
                closing(_Digests(folder / f"{name}.digests", is_needed=has_copies)) as digests,
                closing(_Digests(folder / f"{name}.texts", is_needed=bool(self.compared))) as texts,
            ):
                sources = [
                    (each.label, texts.of_texts(digests.of_rows(each.rows, self.rows), self.compared))
                    for each in split.blocks
                ]
                for place, encoded in encode_each(sources, self.encoder, self.num_proc):
                    records[place].add(encoded)
                    writer.append(encoded)
                    self.on_progress()
                    progress.advance(encoded.counts.documents)
                described = writer.finish() | digests.finish("digests") | texts.finish("texts")
        finally:
            writer.abandon()
        blocks = [record.finish() for record in records]
        return described | {"num_blocks": split.num_blocks, "blocks": blocks}

    def _manifest(self, splits: dict[str, Any]) -> dict[str, Any]:
        content = {name: [block["sha256"] for block in split["blocks"]] for name, split in splits.items()}
        return manifest_of(self.request, self.tokenizer, splits, content) | {
            "format_version": PART_FORMAT,
            "part": {"number": self.part.number, "of": self.part.of},
        }


class _Digests:
    """File with the digests of the texts of a split; no file if they are not compared."""

    def __init__(self, path: Path, *, is_needed: bool) -> None:
        self._file = None
        if is_needed:
            with writing(path.parent):
                self._file = HashedFile(path)

    def of_texts(self, rows: Iterable[Row], fields: Sequence[str]) -> Iterator[Row]:
        """Yield rows unchanged, and write a digest for each of these fields."""
        for row in rows:
            if self._file is not None:
                self._file.write(np.frombuffer(b"".join(digests_of(row, fields)), DIGEST))
            yield row

    def of_rows(self, rows: Iterable[Row], row_format: RowFormat) -> Iterator[Row]:
        """Yield rows unchanged, and write a digest for each row with text."""
        if self._file is None:
            return iter(rows)
        file = self._file
        return noting(rows, row_format.key, lambda digest: file.write(np.frombuffer(digest, DIGEST)))

    def finish(self, name: str) -> dict[str, Any]:
        """Return the file's entry in the manifest."""
        return {} if self._file is None else {name: self._file.finish()}

    def close(self) -> None:
        """Close the file, complete or not."""
        if self._file is not None:
            self._file.close()
