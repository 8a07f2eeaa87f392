"""Prepared text as training opens it: memory maps or a stream, the tokenizer, and a report of both."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from neobert.config.corpora import corpus_label
from neobert.config.schema import MixtureCorpus, RunConfig, TokenizerConfig
from neobert.data.batches.document_stream import DocumentStream, open_stream
from neobert.data.batches.mixture import CorpusSlice, MixedText
from neobert.data.batches.shape import BatchShape, segment_length
from neobert.data.batches.stepped import SteppedText
from neobert.data.batches.windows import training_shape
from neobert.data.sources.corpus import Corpus
from neobert.data.sources.prepared import PreparedSource
from neobert.data.store.build import TOKENIZER_FOLDER, PreparationRequest, content_hash
from neobert.data.store.opened_text import open_text
from neobert.data.store.report import count_tokens_to_read, measure_fill, shape_report, split_report
from neobert.data.store.segment_store import SegmentStore
from neobert.data.store.token_store import FORMATS, read_manifest
from neobert.data.tokenize.encoding import SUPERVISED
from neobert.data.tokenize.tokenizers import TokenizerBundle, load_tokenizer
from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.runfiles.prepared_parts import MANIFEST
from neobert.tasks.specs import spec_of

TrainingText = SegmentStore | DocumentStream | MixedText

MAX_CHARACTERS = 2000
Piece = tuple[str, bool]


@dataclass(frozen=True, eq=False)
class PreparedData:
    """Text that is ready to train on.

    Attributes:
        folder: folder of the prepared data; in the cache, named by a hash of everything that it depends on.
        train: memory map, or the stream if `dataset.streaming` is set.
        mixture: the corpora that share the memory map; None for a single text.
        eval: evaluation segments, or None.
        fingerprint: sha256 hex of the content, independent of folder and time. For a stream, whose content is
            unknown, sha256 of the request.
        report: JSON-serializable counts, lengths and fill.
    """

    folder: Path
    train: SegmentStore | DocumentStream
    eval: SegmentStore | None
    tokenizer: TokenizerBundle
    fingerprint: str
    report: dict[str, Any]
    mixture: MixedText | None = None

    @property
    def text(self) -> TrainingText:
        """Text that microbatches are drawn from."""
        return self.mixture or self.train

    @property
    def tokenizer_dir(self) -> Path:
        """The tokenizer as a Hugging Face folder."""
        return self.folder / TOKENIZER_FOLDER


def open_prepared(folder: Path, request: PreparationRequest) -> PreparedData:
    """Open the text in a folder. Raises ProjectError DAT001, DAT002 or DAT004 if the run cannot use it."""
    manifest, config = read_manifest(folder, FORMATS), request.config
    _check_request(folder, manifest, request)
    _require_tokenizer(folder)
    tokenizer = request.tokenizer or load_tokenizer(TokenizerConfig(path=str(folder / TOKENIZER_FOLDER)))
    _check_manifest(folder, manifest, tokenizer, segment_length(config))
    splits = manifest["splits"]
    sources = {"train": request.corpus.train, "eval": request.corpus.evaluation}
    # Another run may have prepared the same text from another path: the report names this run's.
    report: dict[str, Any] = {
        name: split["counts"] | {"source": source.label}
        for name, split in splits.items()
        if (source := sources[name]) is not None
    }
    train: SegmentStore | DocumentStream
    if config.dataset.streaming:
        train, counts = open_stream(request.corpus.train, request.examples, tokenizer, config.dataset)
        report["train"] = split_report(f"{train.label}, its head", counts)
    else:
        train = open_text(folder, manifest, "train")
    report = {name: _name_classes(counts, config) for name, counts in report.items()}
    report["train"] = _add_columns(report["train"], request.corpus)
    mixture = _open_mixture(config, train, splits["train"]) if config.dataset.mixture else None
    fingerprint = manifest["fingerprint"]
    if mixture is not None:
        # The weights shape the order of the text, and the cache does not depend on them.
        fingerprint = content_hash([fingerprint, [str(share) for share in mixture.shares]])
    report |= _batch_report(config, mixture or train, report["train"]) | {
        "folder": str(folder),
        "fingerprint": fingerprint,
        "tokenizer": tokenizer.summary(),
    }
    if isinstance(train, SegmentStore) and (sample := first_segment_pieces(train, tokenizer)):
        report["sample"] = sample
    evaluation = open_text(folder, manifest, "eval") if "eval" in splits else None
    return PreparedData(folder, train, evaluation, tokenizer, fingerprint, report, mixture)


def _check_request(folder: Path, manifest: dict[str, Any], request: PreparationRequest) -> None:
    """Raise DAT002 for an output folder that was prepared from different text or settings."""
    stored, requested = manifest["request"], request.content()
    if isinstance(request.corpus.train, PreparedSource):
        requested |= {name: stored.get(name) for name in _stored_request_keys(request)}
    if content_hash(stored) == content_hash(requested) or folder.name == content_hash(requested):
        return
    raise ProjectError(
        "DAT002",
        f"was prepared with different values of {list_different_values(stored, requested)}",
        "set dataset.cache_dir to another folder, or pass a new folder to data prepare --output",
        str(folder),
    )


def _stored_request_keys(request: PreparationRequest) -> tuple[str, ...]:
    """Return the request keys whose values a run on prepared data takes from the manifest."""
    return ("source", "name") if request.tokenizer else ("source", "name", "tokenizer")


def list_different_values(stored: dict[str, Any], requested: dict[str, Any]) -> str:
    """Return the names of the values in which two requests differ, comma-separated."""
    return ", ".join(name for name in requested if stored.get(name) != requested[name])


def _require_tokenizer(folder: Path) -> None:
    """Raise DAT001 if the tokenizer is missing: checkpoints contain it, so the first save would fail."""
    if not (folder / TOKENIZER_FOLDER / "tokenizer.json").is_file():
        hint = f"remove {folder} and prepare the data again"
        raise ProjectError("DAT001", "has no tokenizer.json", hint, str(folder / TOKENIZER_FOLDER))


def _check_manifest(
    folder: Path, manifest: dict[str, Any], tokenizer: TokenizerBundle, max_length: int
) -> None:
    expected = {
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "max_length": max_length,
        "add_special_tokens": True,
    }
    for name, value in expected.items():
        if manifest.get(name) != value:
            raise ProjectError(
                "DAT002",
                f"was prepared with {name} {manifest.get(name)}, but this run has {value}",
                f"remove {folder} and prepare the data again",
                str(folder / MANIFEST),
            )


def _add_columns(counts: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    column = corpus.train.column
    return counts if column is None else {"source": counts["source"], "column": column} | counts


def _name_classes(counts: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """Name the classes in the label counts of a split; counts without labels of texts are unchanged."""
    task = spec_of(config)
    if task.labels is None or not task.labels_texts or "labels" not in counts:
        return counts
    classes = task.labels(config).classes
    return counts | {"labels": {classes[int(each)]: size for each, size in counts["labels"].items()}}


def _open_mixture(
    config: RunConfig, train: SegmentStore | DocumentStream, split: dict[str, Any]
) -> MixedText:
    assert isinstance(train, SegmentStore)  # open_corpus refuses to stream a mixture
    described = split["corpora"]
    # Text without examples of several segments has no count of them.
    sizes = [corpus.get("examples", corpus["segments"]) for corpus in described]
    spec = spec_of(config)
    weights = [
        spec.corpus_weight(config, entry.weight, size)
        for entry, size in zip(config.dataset.mixture, sizes, strict=True)
    ]
    rows = zip(described, config.dataset.mixture, weights, sizes, accumulate(sizes), strict=True)
    corpora = [
        CorpusSlice(_corpus_name(entry), weight, stop - size, stop, corpus["tokens"])
        for corpus, entry, weight, size, stop in rows
    ]
    return (SteppedText if spec.predicts == "pairs" else MixedText)(train, tuple(corpora))


def _corpus_name(corpus: MixtureCorpus) -> str:
    split = f" {corpus.train_split}" if corpus.train_split else ""
    return f"{corpus_label(corpus)}{split}"


def _batch_report(config: RunConfig, train: TrainingText, counts: dict[str, Any]) -> dict[str, Any]:
    shape = training_shape(config, train)
    microbatch = shape_report(shape, train.statistics)
    if isinstance(train, DocumentStream):
        return {"microbatch": microbatch}
    _check_fills_microbatch(train, shape.value, counts.get("tokens_lost", 0))
    fill = measure_fill(train, shape.value)
    tokens = count_tokens_to_read(config, train, shape.value, fill)
    report = {"microbatch": microbatch | {"fill": fill}, "epochs": round(tokens / train.num_tokens, 3)}
    return report | ({"corpora": train.report(tokens)} if isinstance(train, MixedText) else {})


def _check_fills_microbatch(train: SegmentStore | MixedText, shape: BatchShape, num_lost: int) -> None:
    """Raise DAT004 if the training text, less tokens lost to truncation, does not fill a microbatch."""
    has, holds = (train.num_tokens, shape.capacity) if shape.is_packed else (len(train), shape.max_examples)
    if has < holds:
        unit = "token" if shape.is_packed else "document"
        lost = f"; {counted(num_lost, 'token')} of longer documents are lost" if num_lost else ""
        raised = "raise dataset.max_seq_length, " if num_lost else ""
        raise ProjectError(
            "DAT004",
            f"the training text has {counted(has, unit)}, but one microbatch holds {holds:,}{lost}",
            f"{raised}add text, or lower trainer.per_device_train_batch_size",
            "dataset",
        )


def first_segment_pieces(store: SegmentStore, tokenizer: TokenizerBundle) -> list[Piece]:
    """Return the first `MAX_CHARACTERS` characters of the first segment as (text, is supervised) pieces.

    Empty for a store without the column `SUPERVISED`.
    """
    if SUPERVISED.name not in store.column_names:
        return []
    first = store.gather(np.zeros(1, dtype=np.int64))
    ids = first.ids[: first.lengths[0]].tolist()
    marks = first.columns[SUPERVISED.name].astype(bool).tolist()
    pieces, room = [], MAX_CHARACTERS
    for is_supervised, run in groupby(range(len(ids)), lambda index: marks[index]):
        text = str(
            tokenizer.tokenizer.decode([ids[index] for index in run], clean_up_tokenization_spaces=False)
        )
        pieces.append((text if len(text) <= room else f"{text[:room]} ...", is_supervised))
        room -= len(text)
        if room <= 0:
            break
    return pieces
