"""Prepare text once: tokenise, cut to the context, write a memory map under its fingerprint.

`python -m neobert.data.prepare RESOLVED.json` prepares what a resolved config names and prints a JSON report.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.build_lock import build_lock
from neobert.data.encoding import Counts, Encoded, encode_all, segment_encoder
from neobert.data.readers import TextSource
from neobert.data.report import epochs_needed, fill_of, shape_report, split_report
from neobert.data.shape import batch_shape, row_length, segment_length
from neobert.data.sources import Corpus, open_corpus
from neobert.data.store import (
    FORMAT_VERSION,
    MANIFEST,
    SplitWriter,
    TokenStore,
    open_split,
    read_manifest,
    write_manifest,
    writing,
)
from neobert.data.streaming import DocumentStream, open_stream
from neobert.data.tokenizers import TokenizerBundle, is_trained, load_tokenizer, trained_size
from neobert.errors import EXIT_USAGE, ProjectError, write_error_file

CACHE_ENV = "NEOBERT_CACHE"
TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True, eq=False)
class PreparedData:
    """Text that is ready to train on.

    Attributes:
        folder: where it lies, with the tokenizer in `tokenizer_dir`.
        train: memory map, or the stream where `dataset.streaming` asks for one.
        eval: evaluation segments, or None.
        fingerprint: sha256 hex of the content: of the token files where they are prepared, of the request for a stream.
        report: JSON-able: counts, lengths, fill.
    """

    folder: Path
    train: TokenStore | DocumentStream
    eval: TokenStore | None
    tokenizer: TokenizerBundle
    fingerprint: str
    report: dict[str, Any]

    @property
    def tokenizer_dir(self) -> Path:
        """The tokenizer as a Hugging Face folder."""
        return self.folder / TOKENIZER_FOLDER


def prepare(config: RunConfig) -> PreparedData:
    """Prepare the text that a config names, or open what was prepared before.

    Whichever process comes first does the work, the others wait for it. Raises ProjectError with a DAT or TOK code.
    """
    corpus = open_corpus(config.dataset)
    _check_evaluation(config, corpus)
    tokenizer = None if is_trained(config.tokenizer) else load_tokenizer(config.tokenizer)
    request = _request(config, corpus, tokenizer)
    folder = cache_folder(config) / _digest(request)
    if not (folder / MANIFEST).exists():
        with build_lock(folder.with_name(f".{folder.name}.lock")) as report_progress:
            if not (folder / MANIFEST).exists():
                _build(folder, config, corpus, tokenizer, request, report_progress)
    return _open(folder, config, corpus, tokenizer)


def cache_folder(config: RunConfig) -> Path:
    """Return where prepared data is kept."""
    if config.dataset.cache_dir is not None:
        return Path(config.dataset.cache_dir).expanduser()
    if CACHE_ENV in os.environ:
        return Path(os.environ[CACHE_ENV])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "neobert"


def _request(config: RunConfig, corpus: Corpus, tokenizer: TokenizerBundle | None) -> dict[str, Any]:
    """Gather everything that the prepared text depends on; its hash names the folder."""
    dataset = config.dataset
    return {
        "format_version": FORMAT_VERSION,
        "source": corpus.identity(),
        "name": [dataset.name, dataset.config, dataset.text_column],
        "tokenizer": tokenizer.digest if tokenizer else {"wordpiece": trained_size(config.tokenizer)},
        "max_length": segment_length(config),
        "min_length": dataset.min_length,
        "long_documents": dataset.long_documents,
        "streaming": dataset.streaming,
        "evaluation_tokens": _evaluation_budget(config),
    }


def _digest(content: Any) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def _check_evaluation(config: RunConfig, corpus: Corpus) -> None:
    """A stream has no end to evaluate to: its evaluation must be bounded, and cannot be a share."""
    dataset = config.dataset
    if not dataset.streaming:
        return
    is_share = dataset.validation_split is not None and dataset.eval_samples is None
    is_bounded = dataset.eval_samples is not None or config.trainer.eval_max_batches is not None
    if corpus.evaluation is None or (is_share and dataset.eval_split is None) or not is_bounded:
        raise ProjectError(
            "DAT001",
            "a stream needs a bounded set of evaluation documents",
            "set dataset.eval_samples (the head of the stream), or trainer.eval_max_batches beside an evaluation split",
            "dataset.streaming",
        )


def _evaluation_budget(config: RunConfig) -> int | None:
    """Return how many evaluation tokens are read of a stream; None for all."""
    batches = config.trainer.eval_max_batches
    if not config.dataset.streaming or batches is None:
        return None
    return batches * config.trainer.per_device_eval_batch_size * row_length(config)


def _build(
    folder: Path,
    config: RunConfig,
    corpus: Corpus,
    tokenizer: TokenizerBundle | None,
    request: dict[str, Any],
    report_progress: Callable[[], None],
) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        with writing(partial):
            shutil.rmtree(
                partial, ignore_errors=True
            )  # of a process that was killed: this one holds the lock
            partial.mkdir(parents=True)
        tokenizer = tokenizer or load_tokenizer(config.tokenizer, corpus)
        tokenizer.tokenizer.model_max_length = segment_length(config)
        with writing(partial):
            tokenizer.save(partial / TOKENIZER_FOLDER)
        splits = {
            split: _write_split(partial, split, source, config, tokenizer, budget, report_progress)
            for split, source, budget in _splits_to_write(config, corpus)
        }
        write_manifest(partial, _manifest(request, tokenizer, splits))
        with writing(folder):
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _splits_to_write(config: RunConfig, corpus: Corpus) -> Iterator[tuple[str, TextSource, int | None]]:
    if not config.dataset.streaming:
        yield "train", corpus.train, None
    if corpus.evaluation is not None:
        yield "eval", corpus.evaluation, _evaluation_budget(config)


def _write_split(
    folder: Path,
    split: str,
    source: TextSource,
    config: RunConfig,
    tokenizer: TokenizerBundle,
    budget: int | None,
    report_progress: Callable[[], None],
) -> dict[str, Any]:
    dataset = config.dataset
    encoder = segment_encoder(tokenizer, segment_length(config), dataset.min_length, dataset.long_documents)
    counts = Counts()
    writer = SplitWriter(folder, split, encoder.dtype)
    try:
        for encoded in _until(budget, encode_all(source.open(), encoder, dataset.num_proc, source.label)):
            counts.add(encoded.counts)
            writer.append(encoded)
            report_progress()
        described = writer.finish()
    finally:
        writer.abandon()
    if counts.segments == 0:
        raise _empty(source.label, counts)
    return described | {"counts": split_report(source.label, counts)}


def _until(budget: int | None, batches: Iterable[Encoded]) -> Iterator[Encoded]:
    tokens = 0
    for encoded in batches:
        yield encoded
        tokens += encoded.counts.tokens
        if budget is not None and tokens >= budget:
            return


def _manifest(request: dict[str, Any], tokenizer: TokenizerBundle, splits: dict[str, Any]) -> dict[str, Any]:
    content = {name: split["files"] for name, split in splits.items()} if "train" in splits else request
    return {
        "format_version": FORMAT_VERSION,
        "fingerprint": _digest([FORMAT_VERSION, tokenizer.digest, content]),
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "add_special_tokens": True,
        "max_length": request["max_length"],
        "request": request,
        "splits": splits,
    }


def _open(folder: Path, config: RunConfig, corpus: Corpus, tokenizer: TokenizerBundle | None) -> PreparedData:
    manifest = read_manifest(folder)
    if tokenizer is None:
        tokenizer = load_tokenizer(type(config.tokenizer)(path=str(folder / TOKENIZER_FOLDER)))
    _check_manifest(folder, manifest, tokenizer, segment_length(config))
    _check_vocabulary(config, tokenizer)
    splits = manifest["splits"]
    evaluation = open_split(folder, "eval", splits["eval"]) if "eval" in splits else None
    report = {name: split["counts"] for name, split in splits.items()}
    train: TokenStore | DocumentStream
    if config.dataset.streaming:
        dataset = config.dataset
        encoder = segment_encoder(
            tokenizer, segment_length(config), dataset.min_length, dataset.long_documents
        )
        train, counts = open_stream(corpus.train, encoder, dataset)
        report["train"] = split_report(f"{corpus.train.label}, first window", counts)
    else:
        train = open_split(folder, "train", splits["train"])
    report |= _batch_report(config, train) | {
        "folder": str(folder),
        "fingerprint": manifest["fingerprint"],
        "tokenizer": {
            "digest": tokenizer.digest,
            "vocab_size": tokenizer.vocab_size,
            "tokens": tokenizer.num_tokens,
        },
    }
    return PreparedData(folder, train, evaluation, tokenizer, manifest["fingerprint"], report)


def _batch_report(config: RunConfig, train: TokenStore | DocumentStream) -> dict[str, Any]:
    shape = batch_shape(config, config.trainer.per_device_train_batch_size, train.statistics)
    report = {"microbatch": shape_report(shape, train.statistics)}
    if isinstance(train, DocumentStream):
        return report
    if train.num_tokens < shape.value.capacity:
        raise ProjectError(
            "DAT004",
            f"the training text has {train.num_tokens:,} tokens, one microbatch holds {shape.value.capacity:,}",
            "add text, or lower trainer.per_device_train_batch_size",
            "dataset",
        )
    fill = fill_of(train, shape.value)
    report["microbatch"] |= {"fill": fill}
    return report | {"epochs": epochs_needed(config, shape.value, fill, train.num_tokens)}


def _check_manifest(
    folder: Path, manifest: dict[str, Any], tokenizer: TokenizerBundle, max_length: int
) -> None:
    expected = {
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "max_length": max_length,
    }
    for name, value in expected.items():
        if manifest[name] != value:
            raise ProjectError(
                "DAT002",
                f"was prepared with {name} {manifest[name]}, this run has {value}",
                f"remove {folder} and prepare the data again",
                str(folder / MANIFEST),
            )


def _check_vocabulary(config: RunConfig, tokenizer: TokenizerBundle) -> None:
    rows = config.model.vocab_size
    if rows is not None and rows < tokenizer.num_tokens:
        raise ProjectError(
            "DAT002",
            f"the embedding has {rows:,} rows, the tokenizer {tokenizer.num_tokens:,} tokens",
            f"set model.vocab_size to null, or to {tokenizer.vocab_size}",
            "model.vocab_size",
        )


def _empty(label: str, counts: Counts) -> ProjectError:
    return ProjectError(
        "DAT004",
        f"no text is left of {counts.documents:,} documents ({counts.empty:,} empty, {counts.too_short:,} too short, "
        f"{counts.dropped:,} dropped as too long)",
        "check the source, dataset.min_length and dataset.long_documents",
        label,
    )


def main(arguments: list[str]) -> int:
    """Prepare what a resolved config names; returns the exit code."""
    try:
        print(json.dumps(prepare(_read_config(arguments)).report, indent=1))
    except ProjectError as error:
        write_error_file(error)
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _read_config(arguments: list[str]) -> RunConfig:
    from neobert.config import from_dict

    if len(arguments) != 1:
        raise ProjectError(
            "CFG011",
            "one resolved config is needed",
            "python -m neobert.data.prepare RESOLVED.json",
            "",
            EXIT_USAGE,
        )
    try:
        return from_dict(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ProjectError(
            "CFG011", f"cannot be read: {error}", "give a resolved.json", arguments[0], EXIT_USAGE
        ) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
