"""Evaluation on the text of the run whose checkpoint this run continues, to measure forgetting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.batches.streams import EvalStream
from neobert.data.store.prepare import PreparedData, prepare
from neobert.errors import ProjectError
from neobert.families.table import longest_row
from neobert.parallel import World
from neobert.runfiles.continuation import KEY, reading_source_text

log = logging.getLogger(__name__)


def source_evaluation(
    config: RunConfig,
    source: Mapping[str, Any],
    prepared: PreparedData,
    world: World,
    on_progress: Callable[[], None],
) -> Callable[[], EvalStream] | None:
    """Prepare the source run's text; return a function that yields its evaluation microbatches on this rank.

    None if the source run has no evaluation split. Raises `ProjectError` if its text is missing or has
    changed, or if its row length or tokenizer differ from this run's.
    """
    reading = reading_source_text(config, source)
    lengths = longest_row(reading), longest_row(config)
    if lengths[0] != lengths[1]:
        message = f"rows of the source text have {lengths[0]} tokens, but rows of this run have {lengths[1]}"
        raise _refusal(message, f"set dataset.max_seq_length to {lengths[0]}")
    try:
        text = prepare(reading, on_progress)
    except ProjectError as error:
        place = f"{error.place}: " if error.place else ""
        hint = "restore the source text (a relative path starts at the working directory)"
        raise _refusal(f"the source text cannot be read: {place}{error.message}", hint, error.code) from error
    if text.tokenizer.digest != prepared.tokenizer.digest:
        raise _refusal(
            "the source text or its tokenizer has changed", "restore the source text and its tokenizer"
        )
    if text.eval is None:
        log.warning("no evaluation of the source text: the source run had no evaluation split")
        return None
    return partial(EvalStream, text, reading, text.tokenizer, rank=world.dp_rank, world_size=world.dp_size)


def _refusal(message: str, hint: str, code: str = "CKP007") -> ProjectError:
    return ProjectError(code, message, f"{hint}, or set trainer.eval_source_text: false", KEY)
