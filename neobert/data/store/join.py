"""Joining of the parts of a text into one, without copying them.

`python -m neobert.data.store.join CONTENT.json`, with the folder of the parts as `folder`, prints a JSON
report. The manifest that it writes names the files of all parts, and their blocks in the order of the text.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.atomic_write import write_atomically
from neobert.data.store.block_record import sum_counts
from neobert.data.store.block_writer import SPLIT_NAMES
from neobert.data.store.build import (
    FINGERPRINT_VERSION,
    TOKENIZER_FOLDER,
    content_hash,
    empty_text_error,
)
from neobert.data.store.checksums import manifest_files
from neobert.data.store.overlap import DIGESTS, TEXTS, count_overlap
from neobert.data.store.report import split_report
from neobert.data.store.split_writer import length_statistics
from neobert.data.store.token_store import check_size, convert_write_errors
from neobert.data.tokenize.encoding import Counts
from neobert.errors import ProjectError
from neobert.json_program import serve
from neobert.runfiles.part_faults import (
    ONE_RUN_FILE,
    UNFINISHED,
    Manifest,
    PreparedParts,
    describe_missing_parts,
    missing_parts_hint,
    read_prepared_parts,
)
from neobert.runfiles.prepared_parts import MANIFEST, PART_FORMAT, PartNumber


def join(folder: Path) -> dict[str, Any]:
    """Write the manifest of joined parts, and return the report of the text.

    Raises DAT038 for parts that are missing, damaged or of different texts, and DAT004 for a split without
    text.
    """
    found = read_prepared_parts(folder)
    if found is None:
        hint = f"prepare the parts first: `neobert-launch data prepare RUN --part K/N --output {folder}`"
        raise ProjectError(UNFINISHED, "contains no prepared part", hint, str(folder))
    refuse_faulty_parts(folder, found)
    parts = dict(sorted(found.manifests.items()))
    for part, manifest in parts.items():
        for name, file in _part_files(manifest).items():
            check_size(folder / part.folder / name, file["bytes"])
    first, manifest = next(iter(parts.items()))
    splits = {name: _join_split(name, parts, folder) for name in manifest["splits"]}
    count_overlap(splits, [(folder / part.folder, each["splits"]) for part, each in parts.items()])
    content = {name: _block_checksums(name, parts) for name in splits}
    joined = {
        name: manifest[name]
        for name in ("tokenizer_digest", "vocab_size", "add_special_tokens", "max_length", "request")
    }
    joined |= {
        "format_version": PART_FORMAT,
        "fingerprint": content_hash([FINGERPRINT_VERSION, manifest["tokenizer_digest"], content]),
        "splits": splits,
        "parts": [{"folder": part.folder, "splits": _part_sizes(each)} for part, each in parts.items()],
    }
    with convert_write_errors(folder):
        shutil.copytree(
            folder / first.folder / TOKENIZER_FOLDER, folder / TOKENIZER_FOLDER, dirs_exist_ok=True
        )
        write_atomically(folder / MANIFEST, json.dumps(joined, sort_keys=True).encode("utf-8"))
    report: dict[str, Any] = {name: split["counts"] for name, split in splits.items()}
    return report | {"parts": len(parts), "fingerprint": joined["fingerprint"], "folder": str(folder)}


def refuse_faulty_parts(folder: Path, parts: PreparedParts) -> None:
    """Raise DAT038 for parts of different texts, and for missing parts."""
    if parts.faults:
        raise ProjectError(UNFINISHED, "; ".join(parts.faults), ONE_RUN_FILE, str(folder))
    if parts.missing:
        raise ProjectError(
            UNFINISHED,
            describe_missing_parts(parts.missing),
            missing_parts_hint(parts.missing, folder),
            str(folder),
        )


def _join_split(name: str, parts: Mapping[PartNumber, Manifest], folder: Path) -> dict[str, Any]:
    """Return the manifest entry of a split, blocks in text order. Raises DAT004 for a corpus without text."""
    placed = sorted(_blocks_with_offsets(name, list(parts.values())), key=lambda each: each[0]["index"])
    records = [record for record, *_ in placed]
    sizes: list[dict[str, int]] = []
    counts = Counts()
    for number in range(1 + max((record["corpus"] for record in records), default=0)):
        corpus = [record for record in records if record["corpus"] == number]
        own = sum_counts(corpus)
        if not own.segments:
            raise empty_text_error(f"{folder} ({SPLIT_NAMES[name]} text)", own)
        counts.add(own)
        examples = sum(record["examples"] for record in corpus)
        sizes.append({"segments": own.segments, "tokens": own.tokens, "examples": examples})
    splits = [manifest["splits"][name] for manifest in parts.values()]
    longest = max(record["longest"] for record in records)
    squares = sum(record["squares"] for record in records)
    return {
        "segments": counts.segments,
        "tokens": counts.tokens,
        "dtype": splits[0]["dtype"],
        "columns": splits[0]["columns"],
        "lengths": length_statistics(
            counts.tokens, squares, sum(each["examples"] for each in sizes), longest
        ),
        "highest_id": max(split["highest_id"] for split in splits),
        "counts": split_report(str(folder), counts),
        "corpora": sizes,
        "blocks": {
            "part": [part for _, part, _, _ in placed],
            "first_example": [example for _, _, example, _ in placed],
            "first_segment": [segment for _, _, _, segment in placed],
            "examples": [record["examples"] for record in records],
            "segments": [record["segments"] for record in records],
        },
    }


def _blocks_with_offsets(
    name: str, manifests: Sequence[Manifest]
) -> Iterator[tuple[dict[str, Any], int, int, int]]:
    """Yield (block, part index, first example and first segment in the part) for each block of a split."""
    for part, manifest in enumerate(manifests):
        example, segment = 0, 0
        for record in manifest["splits"][name]["blocks"]:
            yield record, part, example, segment
            example, segment = example + record["examples"], segment + record["segments"]


def _block_checksums(name: str, parts: Mapping[PartNumber, Manifest]) -> list[str]:
    """Return a split's block checksums in text order."""
    blocks = (block for manifest in parts.values() for block in manifest["splits"][name]["blocks"])
    return [block["sha256"] for block in sorted(blocks, key=lambda block: int(block["index"]))]


def _part_sizes(manifest: Manifest) -> dict[str, Any]:
    names = ("segments", "tokens", "files")
    return {split: {name: each[name] for name in names} for split, each in manifest["splits"].items()}


def _part_files(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest entries of a part's files by name, with its text digests as `<split>.<kind>`."""
    splits = manifest["splits"].items()
    digests = {
        f"{name}.{kind}": split[kind] for name, split in splits for kind in (DIGESTS, TEXTS) if kind in split
    }
    return dict(manifest_files(manifest)) | digests


if __name__ == "__main__":
    sys.exit(serve(lambda content: join(Path(content["folder"])), sys.argv[1:]))
