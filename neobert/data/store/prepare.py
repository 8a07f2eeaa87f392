"""Preparation of text: tokenize, split to the context length, store once, open as a memory map.

`python -m neobert.data.store.prepare RESOLVED.json [FOLDER]` prepares the text of a resolved config and
prints a JSON report.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neobert.config import from_dict
from neobert.config.corpora import is_remote
from neobert.config.schema import RunConfig
from neobert.data.sources.corpus import Corpus, open_corpus, with_evaluation_table
from neobert.data.sources.file_digests import FOLDER as DIGESTS
from neobert.data.sources.file_digests import DescribeFile, FileDigests, describe_by_ends, size_and_end_digest
from neobert.data.sources.parts import HashShare
from neobert.data.sources.prepared import joined_folder
from neobert.data.store.build import PreparationRequest, build
from neobert.data.store.build_lock import build_lock
from neobert.data.store.prepared_data import PreparedData, open_prepared
from neobert.data.store.remote import fetch
from neobert.data.store.token_store import FORMATS, read_manifest
from neobert.data.tokenize.encoding_pool import check_not_a_child
from neobert.data.tokenize.token_agreement import measure_agreement
from neobert.data.tokenize.tokenizers import (
    is_trained,
    load_tokenizer,
    refuse_shared_padding,
)
from neobert.errors import ProjectError
from neobert.json_program import serve
from neobert.plugins.dataset import dataset_plugin_splits
from neobert.plurals import counted
from neobert.runfiles.cache_folder import cache_folder
from neobert.runfiles.part_faults import UNFINISHED, join_command
from neobert.runfiles.prepared_parts import MANIFEST, PART_FORMAT, parts_in
from neobert.tasks.specs import spec_of


def prepare(
    config: RunConfig, on_progress: Callable[[], None] = lambda: None, *, output: Path | None = None
) -> PreparedData:
    """Prepare the text that a config names, or open the text if it is already prepared.

    Joined parts that `dataset.path` names are opened where they are, or copied from an object store. Else the
    text is stored in `output`, a new folder, or in the cache. If the cache folder itself is an earlier
    `output`, that is opened.
    The first process prepares and calls `on_progress`; other processes wait.
    Raises ProjectError with a DAT or TOK code, or CKP010.
    """
    if is_remote(config.dataset):
        fetch(config.dataset, on_progress)
    if (joined := joined_folder(config.dataset)) is not None:
        return open_prepared(joined, build_preparation_request(config, size_and_end_digest))
    cache = cache_folder(config.dataset)
    if output is not None and output.absolute() == cache.absolute():
        cache = output.parent  # the complete folder replaces an empty one, so no lock may be in it
    is_joined = output is None and _is_joined(cache)
    describe = describe_by_ends if config.dataset.streaming else FileDigests(cache / DIGESTS).describe
    request = build_preparation_request(
        config, size_and_end_digest if is_joined else describe, is_parted=is_joined
    )
    key = request.key()
    folder = output or (cache if (cache / MANIFEST).exists() else cache / key)
    if not (folder / MANIFEST).exists():
        check_not_a_child()
        with build_lock(cache / f".{key}.lock") as report_progress:

            def report() -> None:
                report_progress()
                on_progress()

            if not (folder / MANIFEST).exists():
                build(folder, request, key, report)
    return open_prepared(folder, request)


def _is_joined(folder: Path) -> bool:
    """Return whether a folder holds joined parts. Raises DAT038 for parts that are not joined."""
    if (folder / MANIFEST).exists():
        return bool(read_manifest(folder, FORMATS)["format_version"] == PART_FORMAT)
    if parts := parts_in(folder):
        hint = f"run {join_command(folder)}, or set dataset.cache_dir to another folder"
        message = f"holds {counted(len(parts), 'part')} of a text, which are not joined"
        raise ProjectError(UNFINISHED, message, hint, str(folder))
    return False


def build_preparation_request(
    config: RunConfig, describe: DescribeFile, *, is_parted: bool = False
) -> PreparationRequest:
    """Return the request for a config, its text and tokenizer opened; `describe` identifies a file."""
    spec = spec_of(config)
    rows = spec.rows(config)
    corpus = open_corpus(config.dataset, rows, describe, dataset_plugin_splits(config.plugins, rows))
    if (table := spec.evaluation_table(config)) is not None:
        corpus = with_evaluation_table(corpus, *table, describe)
    _check_evaluation(config, corpus)
    tokenizer = None if is_trained(config.tokenizer) else load_tokenizer(config.tokenizer, roles=spec.roles)
    if tokenizer is not None:
        refuse_shared_padding(tokenizer, str(config.tokenizer.path or config.tokenizer.name))
    return PreparationRequest(config, corpus, tokenizer, is_parted)


def _check_evaluation(config: RunConfig, corpus: Corpus) -> None:
    """Raise CKP010 for missing evaluation text, DAT001 for a streamed evaluation without a limit.

    Evaluation text is optional, unless the best checkpoint is chosen by evaluations. A stream may have no
    end, so its evaluation needs a limit.
    """
    if corpus.evaluation is None and config.trainer.metric_for_best_model is not None:
        raise ProjectError(
            "CKP010",
            "trainer.metric_for_best_model is set, but there is no evaluation text",
            "set dataset.eval_samples or dataset.validation_split, or trainer.metric_for_best_model to null",
            "trainer.metric_for_best_model",
        )
    has_split = corpus.evaluation is not None and not isinstance(corpus.evaluation, HashShare)
    is_cut = has_split and config.trainer.eval_max_batches is not None
    if config.dataset.streaming and config.dataset.eval_samples is None and not is_cut:
        raise ProjectError(
            "DAT001",
            "a stream needs a limited number of evaluation documents",
            "set dataset.eval_samples, or trainer.eval_max_batches with an evaluation split",
            "dataset.streaming",
        )


def _reported_content(content: dict[str, Any]) -> dict[str, Any]:
    config, output = from_dict(content), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    prepared = prepare(config, output=output)
    return prepared.report | {"token_ids": measure_agreement(config, prepared.tokenizer)}


if __name__ == "__main__":
    sys.exit(serve(_reported_content, sys.argv[1:2], logging.INFO))
