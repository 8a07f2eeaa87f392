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

import numpy as np
from numpy.typing import NDArray

from neobert.atomic_write import write_atomically
from neobert.data.store.block_record import sum_of
from neobert.data.store.build import (
    FINGERPRINT_VERSION,
    SPLIT_NAMES,
    TOKENIZER_FOLDER,
    empty_text,
    hash_of,
)
from neobert.data.store.checksums import files_of
from neobert.data.store.overlap import DIGEST, MAX_ROWS, count_copies, count_shared
from neobert.data.store.report import split_report
from neobert.data.store.split_writer import lengths_of
from neobert.data.store.token_store import check_size, writing
from neobert.data.tokenize.encoding import Counts
from neobert.errors import ProjectError
from neobert.json_program import serve
from neobert.runfiles.part_faults import (
    DISAGREE,
    ONE_RUN_FILE,
    UNFINISHED,
    FoundParts,
    Manifest,
    finish,
    found_parts,
    missing_text,
)
from neobert.runfiles.prepared_parts import MANIFEST, PART_FORMAT, PartNumber


def join(folder: Path) -> dict[str, Any]:
    """Write the manifest of joined parts, and return the report of the text.

    Raises DAT038 for parts that are missing or damaged, DAT039 for parts of different texts, and DAT004 for a
    split without text.
    """
    found = found_parts(folder)
    if found is None:
        hint = f"prepare the parts first: `neobert-launch data prepare RUN --part K/N --output {folder}`"
        raise ProjectError(UNFINISHED, "has no part of a text", hint, str(folder))
    refuse_faults(folder, found)
    parts = dict(sorted(found.manifests.items()))
    for part, manifest in parts.items():
        for name, file in _files(manifest).items():
            check_size(folder / part.folder / name, file["bytes"])
    first, manifest = next(iter(parts.items()))
    splits = {name: _joined(name, parts, folder) for name in manifest["splits"]}
    if splits.keys() >= {"train", "eval"}:
        _count_copies(splits, parts, folder)
    if "texts" in manifest["splits"]["train"]:
        _count_shared_texts(splits, parts, folder)
    content = {name: _checksums(name, parts) for name in splits}
    joined = {
        name: manifest[name]
        for name in ("tokenizer_digest", "vocab_size", "add_special_tokens", "max_length", "request")
    }
    joined |= {
        "format_version": PART_FORMAT,
        "fingerprint": hash_of([FINGERPRINT_VERSION, manifest["tokenizer_digest"], content]),
        "splits": splits,
        "parts": [{"folder": part.folder, "splits": _sizes(each)} for part, each in parts.items()],
    }
    with writing(folder):
        shutil.copytree(
            folder / first.folder / TOKENIZER_FOLDER, folder / TOKENIZER_FOLDER, dirs_exist_ok=True
        )
        write_atomically(folder / MANIFEST, json.dumps(joined, sort_keys=True).encode("utf-8"))
    report: dict[str, Any] = {name: split["counts"] for name, split in splits.items()}
    return report | {"parts": len(parts), "fingerprint": joined["fingerprint"], "folder": str(folder)}


def refuse_faults(folder: Path, parts: FoundParts) -> None:
    """Raise DAT039 for parts of different texts, DAT038 for missing parts."""
    if parts.faults:
        raise ProjectError(DISAGREE, "; ".join(parts.faults), ONE_RUN_FILE, str(folder))
    if parts.missing:
        raise ProjectError(
            UNFINISHED, missing_text(parts.missing), finish(parts.missing, folder), str(folder)
        )


def _joined(name: str, parts: Mapping[PartNumber, Manifest], folder: Path) -> dict[str, Any]:
    """Return the entry of a split in the manifest; its blocks are in the order of the text."""
    placed = sorted(_placed(name, list(parts.values())), key=lambda each: each[0]["index"])
    records = [record for record, *_ in placed]
    sizes: list[dict[str, int]] = []
    counts = Counts()
    for number in range(1 + max((record["corpus"] for record in records), default=0)):
        corpus = [record for record in records if record["corpus"] == number]
        own = sum_of(corpus)
        if not own.segments:
            raise empty_text(f"{folder} ({SPLIT_NAMES[name]} text)", own)
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
        "lengths": lengths_of(counts.tokens, squares, sum(each["examples"] for each in sizes), longest),
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


def _placed(name: str, manifests: Sequence[Manifest]) -> Iterator[tuple[dict[str, Any], int, int, int]]:
    """Yield (block, place of its part, its first example and segment there) for all blocks of a split."""
    for part, manifest in enumerate(manifests):
        example, segment = 0, 0
        for record in manifest["splits"][name]["blocks"]:
            yield record, part, example, segment
            example, segment = example + record["examples"], segment + record["segments"]


def _checksums(name: str, parts: Mapping[PartNumber, Manifest]) -> list[str]:
    """Return the checksums of the blocks of a split in the order of the text."""
    blocks = (block for manifest in parts.values() for block in manifest["splits"][name]["blocks"])
    return [block["sha256"] for block in sorted(blocks, key=lambda block: int(block["index"]))]


def _sizes(manifest: Manifest) -> dict[str, Any]:
    names = ("segments", "tokens", "files")
    return {split: {name: each[name] for name in names} for split, each in manifest["splits"].items()}


def _files(manifest: Manifest) -> dict[str, Any]:
    """Return the files of a part, with those of its text digests, by name."""
    splits = manifest["splits"].items()
    kinds = ("digests", "texts")
    digests = {f"{name}.{kind}": split[kind] for name, split in splits for kind in kinds if kind in split}
    return dict(files_of(manifest)) | digests


def _count_copies(splits: dict[str, Any], parts: Mapping[PartNumber, Manifest], folder: Path) -> None:
    """Count the copies of evaluation documents in the training text, from the digests of the parts."""

    def digests(name: str) -> Iterator[NDArray[np.unsignedinteger]]:
        for part in parts:
            yield np.fromfile(folder / part.folder / f"{name}.digests", DIGEST)

    in_training, of_evaluation = count_copies(digests("train"), np.concatenate([*digests("eval")]))
    splits["train"]["counts"]["copies_of_evaluation"] = in_training
    splits["eval"]["counts"]["copies_in_training"] = of_evaluation


def _count_shared_texts(splits: dict[str, Any], parts: Mapping[PartNumber, Manifest], folder: Path) -> None:
    """Count the rows of pairs with a text of another source or split, as one preparation does."""
    counts = splits["train"]["counts"]
    sources = _texts("train", parts, folder)
    counts["texts_of_other_sources"], counts["texts_compared"] = count_shared(
        [np.concatenate(each)[:MAX_ROWS] for each in sources]
    )
    if "eval" in splits:
        rows = np.concatenate([each for source in _texts("eval", parts, folder) for each in source])
        is_found = np.zeros(rows.shape, dtype=np.bool_)
        for block in (block for source in sources for block in source):
            is_found |= np.isin(rows, block)
        splits["eval"]["counts"]["texts_in_training"] = int(is_found.any(axis=1).sum())


def _texts(
    name: str, parts: Mapping[PartNumber, Manifest], folder: Path
) -> list[list[NDArray[np.unsignedinteger]]]:
    """Return the digests [rows, texts] of the blocks of each corpus, in the order of the text."""
    blocks: list[tuple[int, int, NDArray[np.unsignedinteger]]] = []
    for part, manifest in parts.items():
        records = manifest["splits"][name]["blocks"]
        sizes = [sum_of([record]).documents for record in records]
        digests = np.fromfile(folder / part.folder / f"{name}.texts", DIGEST)
        rows = digests.reshape(sum(sizes), -1) if sum(sizes) else digests.reshape(0, 1)
        pieces = np.split(rows, np.cumsum(sizes)[:-1]) if sizes else []
        blocks += [
            (record["corpus"], record["index"], piece)
            for record, piece in zip(records, pieces, strict=True)
            if len(piece)
        ]
    blocks.sort(key=lambda each: each[:2])
    corpora = sorted({corpus for corpus, *_ in blocks})
    return [[piece for corpus, _, piece in blocks if corpus == each] for each in corpora]


if __name__ == "__main__":
    sys.exit(serve(lambda content: join(Path(content["folder"])), sys.argv[1:]))
