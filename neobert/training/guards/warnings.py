"""Warnings of a run that goes on: logged, counted by name, and repeated by the heartbeat for the launcher."""

from __future__ import annotations

import logging

from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)


def warn(trainer: Trainer, name: str, message: str) -> None:
    """Log a warning and count it; the heartbeat carries the newest message of each name."""
    trainer.state.warnings[name] += 1
    trainer.state.warning_messages[name] = f"step {trainer.progress.step}: {message}"
    log.warning("%s", trainer.state.warning_messages[name])
