"""Preparation of one part of a run's text, independently of the others.

`python -m neobert.data.store.part RESOLVED.json DIR K/N` prepares part K of N of the text of a resolved
config into DIR, and prints a JSON report. A part that exists and matches its checksums is not written again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.sources.blocks import Block, assign_parts, split_into_blocks
from neobert.data.sources.file_digests import size_and_end_digest
from neobert.data.sources.parts import known_count
from neobert.data.sources.prepared import joined_folder
from neobert.data.sources.readers import TextSource
from neobert.data.sources.retries import RetryingReader
from neobert.data.store.block_record import sum_counts
from neobert.data.store.block_writer import BlockRows, SplitRows
from neobert.data.store.build import PreparationRequest, check_unchanged, content_hash
from neobert.data.store.build_lock import build_lock
from neobert.data.store.checksums import altered_files, manifest_files
from neobert.data.store.overlap import compared_fields
from neobert.data.store.part_writer import PartWriter
from neobert.data.store.prepare import build_preparation_request
from neobert.data.store.prepared_data import list_different_values
from neobert.data.store.report import split_report
from neobert.data.store.token_store import read_manifest
from neobert.data.tokenize.encoding_pool import check_not_a_child
from neobert.data.tokenize.token_agreement import measure_agreement
from neobert.data.tokenize.tokenizers import is_trained
from neobert.errors import ProjectError
from neobert.json_program import serve
from neobert.plurals import counted
from neobert.runfiles.prepared_parts import MANIFEST, PART_FORMAT, PartNumber

MAX_UNEVEN = 1.1
"""Size of the largest part relative to the mean, above which the report names it."""
Shares = Mapping[str, tuple[int, Sequence[tuple[int, Block]]]]


def prepare_part(config: RunConfig, output: Path, part: PartNumber) -> dict[str, Any]:
    """Prepare a part into `output`, or verify one that exists; return its report.

    Raises DAT001 for a stream, a tokenizer that would be trained, and fewer blocks than parts.
    """
    check_not_a_child()
    _check_can_be_split(config)
    request = build_preparation_request(config, size_and_end_digest, is_parted=True)
    key, folder = request.key(), output / part.folder
    shares, largest = _assign_blocks(request, part)
    with build_lock(output / f".{part.folder}.lock") as on_progress:
        is_new = not (folder / MANIFEST).exists()
        if is_new:
            manifest = _write_part(request, key, output, part, shares, on_progress)
        else:
            manifest = read_manifest(folder, [PART_FORMAT])
            _verify_part(folder, manifest, key, request)
    assert request.tokenizer is not None
    token_ids = {"token_ids": measure_agreement(config, request.tokenizer, part)}
    return (
        _build_report(manifest, request, folder, largest) | {"part": str(part), "is_new": is_new} | token_ids
    )


def _check_can_be_split(config: RunConfig) -> None:
    if (folder := joined_folder(config.dataset)) is not None:
        hint = "set dataset.path to the original text"
        raise ProjectError("DAT001", "is already prepared", hint, str(folder))
    if config.dataset.streaming:
        raise ProjectError(
            "DAT001",
            "a stream cannot be prepared in parts",
            "set dataset.streaming to false",
            "dataset.streaming",
        )
    if is_trained(config.tokenizer):
        raise ProjectError(
            "DAT001",
            "parts need an existing tokenizer, but this run would train one on the whole text",
            "run `neobert-launch tokenizer train -c run.yaml -o tok`, and set tokenizer.path to tok",
            "tokenizer",
        )


def _assign_blocks(request: PreparationRequest, part: PartNumber) -> tuple[Shares, float]:
    """Return the blocks of a part by split, and the size of the largest part relative to the mean.

    Raises DAT001 for fewer training blocks than parts.
    """
    sources = {name: source for name, source, _ in request.splits()}
    blocks = {name: split_into_blocks(source) for name, source in sources.items()}
    if len(blocks["train"]) < part.of:
        largest = len(blocks["train"])
        raise ProjectError(
            "DAT001",
            f"the training text has {counted(largest, 'block')} (files, or row groups of Parquet files), "
            f"which is fewer than {part.of:,} parts",
            f"prepare at most {counted(largest, 'part')}, such as --part 1/{largest}",
            sources["train"].label,
        )
    indices = [(name, index) for name, each in blocks.items() for index in range(len(each))]
    sizes = [blocks[name][index].size for name, index in indices]
    assigned = assign_parts(sizes, part.of)
    loads = [0.0] * part.of
    for size, number in zip(sizes, assigned, strict=True):
        loads[number] += size
    mine = [index for index, number in zip(indices, assigned, strict=True) if number == part.number - 1]
    shares = {
        name: (len(each), [(index, each[index]) for split, index in mine if split == name])
        for name, each in blocks.items()
    }
    return shares, max(loads) * part.of / max(1.0, sum(loads))


def _write_part(
    request: PreparationRequest, key: str, output: Path, part: PartNumber, shares: Shares, on_progress: Any
) -> dict[str, Any]:
    tokenizer, config = request.tokenizer, request.config
    assert tokenizer is not None
    tokenizer.tokenizer.model_max_length = segment_length(config)
    content = request.content()
    writer = PartWriter(
        output,
        part,
        content,
        tokenizer,
        request.examples.encoder(tokenizer),
        request.corpus.train.rows,
        compared_fields(config, request.corpus.train.rows),
        config.dataset.num_proc,
        on_progress,
    )
    splits = {name: _build_split(total, blocks, config) for name, (total, blocks) in shares.items()}

    def check(manifest: dict[str, Any]) -> None:
        train = sum_counts(manifest["splits"]["train"]["blocks"])
        if train.segments:
            request.examples.check(request.corpus.label, train)
        check_unchanged(key, request.content(), request.corpus.label)

    return writer.write(splits, check)


def _build_split(num_blocks: int, blocks: Sequence[tuple[int, Block]], config: RunConfig) -> SplitRows:
    dataset = config.dataset
    rows = [
        BlockRows(
            index, each.key, RetryingReader.from_config(each.source, dataset), each.source.label, each.corpus
        )
        for index, each in blocks
    ]
    counts = [known_count(block.source) for _, block in blocks]
    known = [count for count in counts if count is not None]
    return SplitRows(num_blocks, rows, sum(known) if len(known) == len(counts) else None)


def _verify_part(folder: Path, manifest: dict[str, Any], key: str, request: PreparationRequest) -> None:
    """Raise DAT002 for a part of another request, DAT001 for a damaged one."""
    if content_hash(manifest["request"]) != key:
        names = list_different_values(manifest["request"], request.content())
        message, hint = f"was prepared with different values of {names}", "pass another folder to --output"
        raise ProjectError("DAT002", message, hint, str(folder))
    for name in altered_files(folder, manifest_files(manifest), folder.parent):
        hint = f"remove {folder} and prepare the part again"
        raise ProjectError("DAT001", "does not match its checksum", hint, str(folder / name))


def _build_report(
    manifest: dict[str, Any], request: PreparationRequest, folder: Path, largest: float
) -> dict[str, Any]:
    sources: dict[str, TextSource] = {name: source for name, source, _ in request.splits()}
    splits = manifest["splits"]
    report: dict[str, Any] = {
        name: split_report(sources[name].label, sum_counts(split["blocks"])) for name, split in splits.items()
    }
    report["blocks"] = sum(len(split["blocks"]) for split in splits.values())
    report["num_blocks"] = sum(split["num_blocks"] for split in splits.values())
    if largest > MAX_UNEVEN:
        report["largest_part"] = round(largest, 3)
    return report | {"folder": str(folder)}


if __name__ == "__main__":
    folder, number = Path(sys.argv[2]), PartNumber.from_option(sys.argv[3])
    sys.exit(
        serve(lambda content: prepare_part(from_dict(content), folder, number), sys.argv[1:2], logging.INFO)
    )
