"""Writer of a part of prepared text; `neobert.runfiles.prepared_parts` describes the folder.

The rows may come from anywhere: `neobert.data.store.part` reads the blocks of a run's text.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.data.sources.rows import RowFormat
from neobert.data.store.block_writer import BlockWriter, SplitRows
from neobert.data.store.build import TOKENIZER_FOLDER, build_manifest
from neobert.data.store.token_store import convert_write_errors, write_manifest
from neobert.data.tokenize.encoding import Encoder
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.runfiles.prepared_parts import PART_FORMAT, PartNumber


@dataclass(frozen=True)
class PartWriter:
    """Writer of one part: its splits, tokenizer and manifest.

    Attributes:
        output: folder of all parts.
        request: everything that the tokens depend on, as JSON values: equal for all parts.
        rows: format of the rows; rows with equal keys are copies.
        compared: fields whose texts are compared across rows.
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
        self, splits: Mapping[str, SplitRows], check: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> dict[str, Any]:
        """Write the part and return its manifest.

        `check` may refuse the manifest before the part is published. After an error, nothing is left.
        """
        partial = self.folder.with_name(f".{self.folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # left over from a killed process
        try:
            with convert_write_errors(partial):
                partial.mkdir(parents=True)
                self.tokenizer.save(partial / TOKENIZER_FOLDER)
            writer = BlockWriter(
                partial,
                splits.keys(),
                self.encoder,
                self.rows,
                self.compared,
                self.num_proc,
                self.on_progress,
            )
            manifest = self._build_manifest({name: writer.write(name, each) for name, each in splits.items()})
            check(manifest)
            write_manifest(partial, manifest)
            with convert_write_errors(self.folder):
                partial.rename(self.folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return manifest

    def _build_manifest(self, splits: dict[str, Any]) -> dict[str, Any]:
        content = {name: [block["sha256"] for block in split["blocks"]] for name, split in splits.items()}
        return build_manifest(self.request, self.tokenizer, splits, content) | {
            "format_version": PART_FORMAT,
            "part": {"number": self.part.number, "of": self.part.of},
        }
