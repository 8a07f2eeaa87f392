"""Sequence-length warm-up: steps in which packed documents are cut, and the length of their pieces."""

from __future__ import annotations

from neobert.config.schedules import resolve_steps
from neobert.config.schema import RunConfig, TrainerConfig
from neobert.families.table import max_row_length
from neobert.tasks.spec import PIECE_KEYS
from neobert.tasks.specs import spec_of

STEPS, PERCENT, LENGTH = PIECE_KEYS


def num_piece_steps(trainer: TrainerConfig, max_steps: int) -> int:
    """Return the number of initial steps in which documents are cut into pieces."""
    steps, percent = trainer.sequence_length_warmup_steps, trainer.sequence_length_warmup_percent
    return resolve_steps(percent, steps, max_steps)


def piece_length(config: RunConfig) -> int | None:
    """Return the piece length in tokens during the warm-up, or None if the run cuts no documents."""
    length = config.trainer.sequence_length_warmup_length
    is_cut = (
        num_piece_steps(config.trainer, config.trainer.max_steps) > 0
        and config.datacollator.pack_sequences
        and length < max_row_length(config)
        and STEPS not in spec_of(config).unread_keys
    )
    return length if is_cut else None


def piece_length_at(step: int, config: RunConfig, max_steps: int) -> int | None:
    """Return the piece length in tokens at `step`, counted from 0, or None after the warm-up."""
    return piece_length(config) if step < num_piece_steps(config.trainer, max_steps) else None
