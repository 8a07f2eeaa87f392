"""Missing or inconsistent parts of prepared data.

Used by `data join`, and by the checks of a run whose prepared data has parts that are not joined.
`neobert.runfiles.prepared_parts` describes their manifests.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from neobert.plurals import counted, listed
from neobert.runfiles.prepared_parts import MANIFEST, PART_FORMAT, PartNumber, parts_in

Manifest = Mapping[str, Any]
UNFINISHED = "DAT038"
MAX_FAULTS = 5
ONE_RUN_FILE = "prepare all parts with one run file, into a new folder"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


class PreparedParts(NamedTuple):
    """Parts of prepared data in a folder.

    Attributes:
        manifests: manifests of the complete parts.
        missing: folders of the parts that are absent or not complete.
        faults: reasons why the complete parts cannot be joined, at most `MAX_FAULTS`.
    """

    manifests: Mapping[PartNumber, Manifest]
    missing: tuple[str, ...]
    faults: tuple[str, ...]


def read_prepared_parts(folder: Path) -> PreparedParts | None:
    """Read the manifests of the parts in a folder; None if it has no part."""
    parts = parts_in(folder)
    if not parts:
        return None
    manifests: dict[PartNumber, Manifest] = {}
    faults: list[str] = []
    complete = [part for part in parts if (folder / part.folder / MANIFEST).exists()]
    for part in complete:
        try:
            manifests[part] = _read_part_manifest(folder / part.folder / MANIFEST)
        except _UNREADABLE:
            faults.append(f"{part.folder}/{MANIFEST} is not the manifest of a part")
    absent = missing_parts(parts, complete)
    if manifests:
        faults += islice(part_disagreements(manifests, is_whole=not absent and not faults), MAX_FAULTS)
    return PreparedParts(manifests, tuple(part.folder for part in absent), tuple(faults[:MAX_FAULTS]))


def _read_part_manifest(path: Path) -> Manifest:
    """Read the manifest of a part. Raises one of `_UNREADABLE` if it is not such a manifest."""
    manifest: Manifest = json.loads(path.read_text(encoding="utf-8"))
    if manifest["format_version"] != PART_FORMAT:
        raise ValueError(manifest["format_version"])
    _shared_properties(manifest)
    for split in manifest["splits"].values():
        [(int(block["index"]), str(block["key"])) for block in split["blocks"]]
    PartNumber(**manifest["part"])
    return manifest


def missing_parts(parts: Collection[PartNumber], complete: Collection[PartNumber]) -> list[PartNumber]:
    """Return the parts that are absent or incomplete, for each total number of parts in `parts`."""
    numbers = sorted({part.of for part in parts})
    expected = (PartNumber(number, of) for of in numbers for number in range(1, of + 1))
    return [part for part in expected if part not in complete]


def part_disagreements(manifests: Mapping[PartNumber, Manifest], *, is_whole: bool) -> Iterator[str]:
    """Yield the reasons why parts cannot be joined; if `is_whole`, also blocks that no part has."""
    first = min(manifests)
    reference = _shared_properties(manifests[first])
    for part, manifest in sorted(manifests.items()):
        number = PartNumber(**manifest["part"])
        if part != number:
            yield f"{part.folder} is part {number} under another name"
        if part.of != first.of:
            yield f"{part.folder} belongs to {part.of:,} parts, but {first.folder} to {first.of:,}"
        here = _shared_properties(manifest)
        if names := [name for name in reference if here.get(name) != reference[name]]:
            yield f"{part.folder} differs from {first.folder} in {listed(names, len(names))}"
    for split, described in manifests[first]["splits"].items():
        yield from _misplaced_blocks(split, described["num_blocks"], manifests, is_whole=is_whole)


def _shared_properties(manifest: Manifest) -> dict[str, Any]:
    """Return the properties that all parts of a text share, by their names in messages."""
    of_splits = {
        f"{name} of {split}": described[name]
        for split, described in manifest["splits"].items()
        for name in ("dtype", "columns", "num_blocks")
    }
    splits = sorted(manifest["splits"])
    return {"tokenizer_digest": manifest["tokenizer_digest"], "splits": splits} | {
        **manifest["request"],
        **of_splits,
    }


def _misplaced_blocks(
    split: str, num_blocks: int, manifests: Mapping[PartNumber, Manifest], *, is_whole: bool
) -> Iterator[str]:
    """Yield a reason for each block of a split in two parts, and one for all blocks that no part has."""
    places: dict[int, PartNumber] = {}
    for part, manifest in sorted(manifests.items()):
        for block in manifest["splits"].get(split, {"blocks": ()})["blocks"]:
            other = places.setdefault(block["index"], part)
            if other != part:
                yield f"{part.folder} repeats {block['key']} of {other.folder} ({split})"
    if is_whole and (absent := sorted(set(range(num_blocks)) - places.keys())):
        numbers = listed([*map(str, absent)])
        yield f"no part has block {numbers} of split {split} ({len(absent):,} of {num_blocks:,} missing)"


def describe_missing_parts(missing: Sequence[str]) -> str:
    """Return a message with the number of missing parts and the names of the first five."""
    return (
        f"{counted(len(missing), 'part')} {'is' if len(missing) == 1 else 'are'} missing: {listed(missing)}"
    )


def missing_parts_hint(missing: Sequence[str], folder: Path) -> str:
    """Return the hint for missing parts: the commands that prepare the first one and join all."""
    first = PartNumber.from_folder(missing[0])
    assert first is not None
    prepare = f"neobert-launch data prepare RUN --part {first.option} --output {shlex.quote(str(folder))}"
    return f"run `{prepare}` for each missing part, then {join_command(folder)}"


def join_command(folder: Path) -> str:
    """Return the command that joins the parts in a folder."""
    return f"`neobert-launch data join {shlex.quote(str(folder))}`"
