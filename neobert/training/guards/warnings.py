"""Warnings that do not end the run: logged, counted by name, repeated in the heartbeat."""

from __future__ import annotations

import logging

from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)


def warn(trainer: Trainer, name: str, message: str) -> None:
    """Log a warning and count it; the heartbeat carries the newest message of each name."""
    trainer.state.warnings[name] += 1
    trainer.state.warning_messages[name] = f"step {trainer.progress.step}: {message}"
    log.warning("%s", trainer.state.warning_messages[name])
