"""Writing of prepared text: into a partial folder, which is renamed when it is complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

from neobert.config.corpora import corpus_paths, hint_for_one_document, list_corpora
from neobert.config.schema import DatasetConfig, RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.examples import Examples, load_examples
from neobert.data.sources.corpus import Corpus
from neobert.data.sources.parts import (
    ConcatenatedSource,
    HashShare,
    SlicedSource,
    component_sources,
    known_count,
)
from neobert.data.sources.readers import TextSource
from neobert.data.sources.retries import RetryingReader
from neobert.data.store.block_record import record_counts
from neobert.data.store.block_writer import BLOCK_VALUES, BlockRows, BlockWriter, SplitRows
from neobert.data.store.overlap import DIGESTS, TEXTS, compared_fields, count_overlap
from neobert.data.store.report import split_report
from neobert.data.store.token_store import FORMAT_VERSION, convert_write_errors, write_manifest
from neobert.data.tokenize.encoding import Counts
from neobert.data.tokenize.tokenizers import TokenizerBundle, load_tokenizer
from neobert.data.tokenize.trained import trained_identity
from neobert.errors import ProjectError
from neobert.families.table import max_row_length
from neobert.plurals import counted
from neobert.tasks.specs import spec_of

TOKENIZER_FOLDER = "tokenizer"
# A fingerprint identifies content, and checkpoints store it, so it does not change with the file format.
FINGERPRINT_VERSION = 2
_SOURCE, _SLICE = (
    "set dataset.path or dataset.name to a source with text",
    "check the source and its slice in dataset.train_split or dataset.eval_split",
)


@dataclass(frozen=True)
class PreparationRequest:
    """Request to prepare data.

    Attributes:
        tokenizer: None if one is trained from the corpus.
        is_parted: the text is prepared in parts, and each part names its blocks.
    """

    config: RunConfig
    corpus: Corpus
    tokenizer: TokenizerBundle | None
    is_parted: bool = False

    @cached_property
    def examples(self) -> Examples:
        """The data layer of the task."""
        return load_examples(self.config)

    def content(self) -> dict[str, Any]:
        """Return everything that the prepared text depends on, as JSON values."""
        dataset = self.config.dataset
        names = [[each.name, each.config, each.text_column] for each in list_corpora(dataset)]
        trained = trained_identity(self.config.tokenizer)
        return {
            "format_version": FORMAT_VERSION,
            "source": content_hash(self.corpus.identity()) if self.is_parted else self.corpus.identity(),
            "name": names if dataset.mixture else names[0],
            "tokenizer": self.tokenizer.digest if self.tokenizer else trained,
            "max_length": segment_length(self.config),
            "min_length": dataset.min_length,
            "long_documents": dataset.long_documents,
            "streaming": dataset.streaming,
            "evaluation_tokens": max_evaluation_tokens(self.config),
            **self.examples.identity(),
        }

    def key(self) -> str:
        """Return the SHA-256 of `content` in hex, the name of the cache folder."""
        return content_hash(self.content())

    def splits(self) -> Iterator[tuple[str, TextSource, int | None]]:
        """Yield the splits to write: (name, source, token limit). A stream's training text is not written.

        Evaluation comes first: it is the smaller, and its faults are found before the training text is read.
        """
        if self.corpus.evaluation is not None:
            yield "eval", self.corpus.evaluation, max_evaluation_tokens(self.config)
        if not self.config.dataset.streaming:
            yield "train", self.corpus.train, None


def content_hash(content: Any) -> str:
    """Return the SHA-256 of JSON-serializable content, in hex."""
    return sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def max_evaluation_tokens(config: RunConfig) -> int | None:
    """Return the number of evaluation tokens to read from a stream; None if all are read."""
    batches = config.trainer.eval_max_batches
    if not config.dataset.streaming or batches is None:
        return None
    return batches * config.trainer.per_device_eval_batch_size * max_row_length(config)


def build(folder: Path, request: PreparationRequest, key: str, report_progress: Callable[[], None]) -> None:
    """Write the prepared data of a request with this `key` to `folder`; the caller holds the build lock.

    After an error, the partial folder is removed. `report_progress` is called after each batch.
    """
    _check_documents(request)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        with convert_write_errors(partial):
            _make_partial_folder(folder, partial, is_cache=folder.name == key)
        tokenizer = request.tokenizer or load_tokenizer(
            request.config.tokenizer, request.corpus, spec_of(request.config).roles
        )
        tokenizer.tokenizer.model_max_length = segment_length(request.config)
        with convert_write_errors(partial):
            tokenizer.save(partial / TOKENIZER_FOLDER)
        splits = _write_splits(partial, request, tokenizer, report_progress)
        content = request.content()
        check_unchanged(key, content, request.corpus.label)
        write_manifest(
            partial, build_manifest(content, tokenizer, splits, _content_identity(content, splits))
        )
        with convert_write_errors(folder):
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _make_partial_folder(folder: Path, partial: Path, *, is_cache: bool) -> None:
    """Create the partial folder; remove an incomplete cache folder or an empty output folder at `folder`."""
    shutil.rmtree(partial, ignore_errors=True)  # left over from a killed process
    if partial.is_symlink():
        partial.unlink()
    if is_cache and folder.exists():
        shutil.rmtree(folder)  # without a manifest it is incomplete: another program deleted files in it
    elif folder.exists():
        folder.rmdir()  # a name that the user chose: only an empty folder is replaced
    partial.mkdir(parents=True)


def _write_splits(
    folder: Path, request: PreparationRequest, tokenizer: TokenizerBundle, report_progress: Callable[[], None]
) -> dict[str, Any]:
    """Write the splits of a request; return their manifest entries."""
    rows, dataset = request.corpus.train.rows, request.config.dataset
    writer = BlockWriter(
        folder,
        [name for name, *_ in request.splits()],
        request.examples.encoder(tokenizer),
        rows,
        compared_fields(request.config, rows),
        dataset.num_proc,
        report_progress,
    )
    written, splits = {}, {}
    for name, source, budget in request.splits():
        written[name] = writer.write(name, _split_rows(source, budget, dataset))
        splits[name] = _describe_split(written[name], source, request.examples)
    count_overlap(splits, [(folder, written)])
    for file in (*folder.glob(f"*.{DIGESTS}"), *folder.glob(f"*.{TEXTS}")):
        file.unlink()
    return splits


def _split_rows(source: TextSource, budget: int | None, dataset: DatasetConfig) -> SplitRows:
    """Return the rows of a split, with one block for each of its corpora."""
    blocks = [
        BlockRows(number, each.label, RetryingReader.from_config(each, dataset), each.label, corpus=number)
        for number, each in enumerate(component_sources(source))
    ]
    return SplitRows(len(blocks), blocks, known_count(source), inf if budget is None else budget)


def _describe_split(written: dict[str, Any], source: TextSource, examples: Examples) -> dict[str, Any]:
    """Return the manifest entry of a split with its counts. Raises DAT004 for a corpus without text."""
    total, corpora = Counts(), []
    for part, record in zip(component_sources(source), written["blocks"], strict=True):
        counts = record_counts(record)
        examples.check(part.label, counts)
        if counts.segments == 0:
            raise empty_text_error(part.label, counts)
        corpora.append({name: record[name] for name in ("segments", "tokens", "examples")})
        total.add(counts)
    described = {name: value for name, value in written.items() if name not in BLOCK_VALUES}
    if isinstance(source, ConcatenatedSource):
        described["corpora"] = corpora
    return described | {"counts": split_report(source.label, total)}


def _content_identity(content: dict[str, Any], splits: dict[str, Any]) -> dict[str, Any]:
    """Return what identifies the content: the files of prepared text, or the request for a stream."""
    files = {name: split["files"] for name, split in splits.items()}
    # The size of a stream's evaluation may change between sessions.
    request_alone = {name: value for name, value in content.items() if name != "evaluation_tokens"}
    request_alone["format_version"] = FINGERPRINT_VERSION
    return files if "train" in splits else request_alone


def build_manifest(
    content: dict[str, Any], tokenizer: TokenizerBundle, splits: dict[str, Any], identity: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest of prepared text; `identity` stands for its content in the fingerprint."""
    return {
        "format_version": FORMAT_VERSION,
        "fingerprint": content_hash([FINGERPRINT_VERSION, tokenizer.digest, identity]),
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "add_special_tokens": True,
        "max_length": content["max_length"],
        "request": content,
        "splits": splits,
    }


def check_unchanged(key: str, content: dict[str, Any], label: str) -> None:
    """Raise DAT001 if the text changed after its key was computed."""
    if content_hash(content) != key:
        raise ProjectError(
            "DAT001",
            "changed during preparation",
            "prepare the data again when no other program writes to it",
            label,
        )


def _check_documents(request: PreparationRequest) -> None:
    """Raise DAT004 for a split without documents before any work is done. A stream is not opened for this."""
    dataset = request.config.dataset
    splits = () if dataset.streaming else request.splits()
    for part in (part for _, source, _ in splits for part in component_sources(source)):
        if next(iter(RetryingReader.from_config(part, dataset)), None) is None:
            raise _no_documents_error(part, request)


def _no_documents_error(source: TextSource, request: PreparationRequest) -> ProjectError:
    num_held_out, evaluation = request.config.dataset.eval_samples, request.corpus.evaluation
    held_out = (
        [part.source for part in component_sources(evaluation) if isinstance(part, SlicedSource)]
        if evaluation
        else []
    )
    if num_held_out and isinstance(source, SlicedSource) and source.source in held_out:
        total = source.source.count()
        return ProjectError(
            "DAT004",
            f"no training documents left: {num_held_out:,} go to evaluation (dataset.eval_samples), "
            f"the text has {total:,}",
            "lower dataset.eval_samples, or add text",
            source.source.label,
        )
    if isinstance(source, HashShare) and (total := source.source.count()) != 0:
        message = f"contains 0 of {counted(total or 0, 'document')} (dataset.validation_split {source.share})"
        hint = hint_for_one_document(_paths_of_source(source.source, request.config.dataset))
        return ProjectError("DAT004", message, hint, source.label)
    splits = (request.config.dataset.train_split, request.config.dataset.eval_split)
    hint = _SLICE if any("[" in split for split in splits if split) else _SOURCE
    return ProjectError("DAT004", "has no documents", hint, source.label)


def _paths_of_source(source: TextSource, dataset: DatasetConfig) -> tuple[str, ...]:
    """Return the paths of the corpus that the source reads, whose label begins with them."""
    corpora = [paths for paths in map(corpus_paths, list_corpora(dataset)) if paths]
    read = [paths for paths in corpora if source.label.startswith(", ".join(paths))]
    # The longest: the path of a corpus may begin with that of another, as notes-2 with notes.
    return max(read, key=lambda paths: len(", ".join(paths)), default=())


def empty_text_error(label: str, counts: Counts) -> ProjectError:
    """Return DAT004 for a text with nothing left to train on."""
    if counts.documents == 0:
        return ProjectError("DAT004", "has no documents", _SOURCE, label)
    return ProjectError(
        "DAT004",
        f"every document is left out: {counted(counts.documents, 'document')} ({counts.empty:,} empty, "
        f"{sum(counts.left_out.values()):,} incomplete, "
        f"{counts.too_short:,} too short, {counts.dropped:,} dropped as too long)",
        "check the source, dataset.min_length and dataset.long_documents",
        label,
    )
