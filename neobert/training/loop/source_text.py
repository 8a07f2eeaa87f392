"""Evaluation on the text that the weights were trained on before this run, to measure forgetting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from neobert.config.schema import DatasetConfig, RunConfig, TokenizerConfig
from neobert.data.batches.streams import EvalStream
from neobert.data.store.prepare import prepare
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.errors import ProjectError
from neobert.parallel import World
from neobert.runfiles.continuation import (
    KEY,
    PATH,
    find_run_checkpoint,
    with_checkpoint_text,
    with_row_length,
    with_source_text,
)

log = logging.getLogger(__name__)

Evaluation = Callable[[], EvalStream]


def has_source_text(config: RunConfig, source: Mapping[str, Any] | None) -> bool:
    """Return whether a run evaluates on `eval_source_path`, or on the text of the run that it continues."""
    return config.trainer.eval_source_path is not None or (
        source is not None and config.trainer.eval_source_text
    )


def source_evaluation(
    config: RunConfig,
    source: Mapping[str, Any] | None,
    prepared: PreparedData,
    world: World,
    on_progress: Callable[[], None],
) -> Evaluation | None:
    """Prepare the source text; return a function that yields its evaluation microbatches on this rank.

    The text is at `trainer.eval_source_path`, or else the text of the run that this run continues; call
    `has_source_text` first. None if that run has no evaluation split. Raises `ProjectError` if the text is
    missing or has changed, or if its tokenizer differs from this run's.
    """
    place = config.trainer.eval_source_path
    parent = None if place is None else find_run_checkpoint(Path(place))
    if parent is not None:
        text_config = with_checkpoint_text(config, parent)
        own = TokenizerConfig(path=str(prepared.tokenizer_dir))
        text = _prepare_text(replace(text_config, tokenizer=own), on_progress)
    elif place is not None:
        text_config, text = _configured_text(config, prepared, on_progress)
    else:
        assert source is not None
        text_config = with_row_length(config, with_source_text(config, source))
        text = _parent_run_text(text_config, prepared, on_progress)
    if text.eval is None:
        log.warning("no evaluation of the source text: the source run had no evaluation split")
        return None
    return partial(
        EvalStream, text, text_config, text.tokenizer, rank=world.dp_rank, world_size=world.dp_size
    )


def _configured_text(
    config: RunConfig, prepared: PreparedData, on_progress: Callable[[], None]
) -> tuple[RunConfig, PreparedData]:
    """Return the text at `trainer.eval_source_path`, in this run's tokens and entirely for evaluation."""
    shared_keys = (
        "text_column",
        "document_per_line",
        "column_names",
        "tsv_quotes",
        "max_seq_length",
        "min_length",
    )
    dataset = DatasetConfig(
        path=config.trainer.eval_source_path,
        long_documents=config.dataset.long_documents,
        cache_dir=config.dataset.cache_dir,
        num_proc=config.dataset.num_proc,
        **{name: getattr(config.dataset, name) for name in shared_keys},
    )
    text_config = replace(
        config,
        dataset=dataset,
        tokenizer=TokenizerConfig(path=str(prepared.tokenizer_dir)),
        trainer=replace(config.trainer, metric_for_best_model=None),
    )
    text = _prepare_text(text_config, on_progress)
    assert isinstance(text.train, SegmentStore)
    return text_config, replace(text, eval=text.train)


def _prepare_text(text_config: RunConfig, on_progress: Callable[[], None]) -> PreparedData:
    try:
        return prepare(text_config, on_progress)
    except ProjectError as error:
        message = f"the source text cannot be read: {error.located_message}"
        raise ProjectError(error.code, message, f"set {PATH} to a file or folder with text", PATH) from error


def _parent_run_text(
    text_config: RunConfig, prepared: PreparedData, on_progress: Callable[[], None]
) -> PreparedData:
    try:
        text = prepare(text_config, on_progress)
    except ProjectError as error:
        hint = (
            "restore the source text and its tokenizer (a relative path starts at the working directory of "
            "their run)"
        )
        raise _source_text_error(
            f"the source text cannot be read: {error.located_message}", hint, error.code
        ) from error
    if text.tokenizer.digest != prepared.tokenizer.digest:
        raise _source_text_error(
            "the source text or its tokenizer has changed", "restore the source text and its tokenizer"
        )
    return text


def _source_text_error(message: str, hint: str, code: str = "CKP007") -> ProjectError:
    return ProjectError(code, message, f"{hint}, or set trainer.eval_source_text: false", KEY)
