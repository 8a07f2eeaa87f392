"""Sequence-length warm-up: steps in which packed documents are cut, and the length of their pieces."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.families.table import longest_row
from neobert.tasks import spec_of
from neobert.tasks.spec import PIECE_KEYS

STEPS, LENGTH = PIECE_KEYS


def piece_length(config: RunConfig) -> int | None:
    """Return the tokens of the pieces of a run's warm-up; None if it has none, or there is nothing to cut."""
    length = config.trainer.sequence_length_warmup_length
    is_cut = (
        config.trainer.sequence_length_warmup_steps > 0
        and config.datacollator.pack_sequences
        and length < longest_row(config)
        and STEPS not in spec_of(config).unread
    )
    return length if is_cut else None


def piece_length_at(step: int, config: RunConfig) -> int | None:
    """Return the tokens of the pieces of a step, counted from 0; None after the warm-up."""
    return piece_length(config) if step < config.trainer.sequence_length_warmup_steps else None
