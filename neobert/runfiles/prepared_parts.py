"""Folders of data that is prepared in parts: their names, and what `data join` reads from them.

`DIR/part-K-of-N`, K from 1 to N, holds what one preparation would write for some of the text's blocks: its
`tokenizer` folder, `<split>.tokens`, `<split>.offsets`, `<split>.<name>.column`, and, if the text has an
evaluation split, `<split>.digests`, 8 bytes for each text. It is written as `DIR/.part-K-of-N.partial` and
renamed after its `manifest.json`, so that a part with a manifest is complete.

The manifest of a part has the keys of a whole preparation, and `part: {number, of}`. `request`, which is the
same for all parts, holds everything that the tokens depend on. Each split has:

- `num_blocks`: blocks of the whole text. A block is a file, or a row group of a Parquet file.
- `blocks`: the blocks of this part, in the order of the files: `index` in the whole text, `key` (the name of
  the file, with the row group), `corpus` of a mixture, `segments`, `tokens`, `examples`, `squares` (sum of
  the squared lengths of examples), `sha256` of the content, and `counts`.
- `highest_id`: the largest token id, -1 without tokens.
- `digests`: size and checksum of the file of text digests.

`data join` orders the blocks by `index`, so that the number of a segment depends on its source and not on its
part, and writes `DIR/manifest.json`, which names the files of all parts. No data is copied.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from neobert.errors import EXIT_USAGE, ProjectError

MANIFEST = "manifest.json"
PART_FORMAT = 4
"""Format of the manifests of parts and of joined parts."""
_PART = re.compile(r"part-([1-9]\d{0,8})-of-([1-9]\d{0,8})")
_OPTION = re.compile(r"([1-9]\d{0,8})/([1-9]\d{0,8})")


class PartNumber(NamedTuple):
    """Part `number` (from 1) of `of` parts."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number} of {self.of}"

    @property
    def folder(self) -> str:
        """Name of the part's folder."""
        return f"part-{self.number}-of-{self.of}"

    @property
    def option(self) -> str:
        """The part as K/N, the value of --part."""
        return f"{self.number}/{self.of}"

    @classmethod
    def from_option(cls, text: str) -> PartNumber:
        """Parse K/N, a value of --part. Raises ProjectError unless 1 <= K <= N."""
        match = _OPTION.fullmatch(text)
        if match is None or int(match[1]) > int(match[2]):
            message, hint = f"{text!r} is not a part", "write --part K/N with K from 1 to N, such as 3/64"
            raise ProjectError("invalid-part", message, hint, "--part", EXIT_USAGE)
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_folder(cls, name: str) -> PartNumber | None:
        """Parse a folder name such as part-1-of-4; return None for other names."""
        match = _PART.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]))


def parts_in(folder: Path) -> list[PartNumber]:
    """Return the parts in a folder, sorted by number, complete or not."""
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    found = (PartNumber.from_folder(name.removeprefix(".").removesuffix(".partial")) for name in names)
    return sorted({part for part in found if part is not None})


def is_joined(folder: Path) -> bool:
    """Return whether the parts in a folder are joined."""
    return (folder / MANIFEST).is_file() and bool(parts_in(folder))
