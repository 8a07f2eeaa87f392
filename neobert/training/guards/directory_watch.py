"""Requests that reach a run through its directory: a move, a deletion, or a `.HALT` file in it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neobert.runfiles.location import HALT, current_path, deleted_error, moved_error
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)


class DirectoryWatch:
    """A hook, and a check before each save, on the rank that writes.

    A run whose directory was moved saves there and stops: its files stay one tree, and none is begun at the
    old path.
    """

    def __init__(self, run_dir: Path, descriptor: int) -> None:
        self._run_dir, self._descriptor = run_dir, descriptor

    def __call__(self, trainer: Trainer, _report: StepReport) -> None:
        """Check after a step."""
        self.check(trainer)

    def check(self, trainer: Trainer) -> None:
        """Have the run stop where its directory says so. Raises `ProjectError` when the directory is gone."""
        if not trainer.world.is_main:
            return
        found, step = current_path(self._run_dir, self._descriptor), trainer.progress.step
        if found is None:
            raise deleted_error(self._run_dir, step)
        if found != trainer.run_dir:
            log.warning("the run directory %s is now %s: saving there and stopping", trainer.run_dir, found)
            trainer.run_dir = found
            trainer.state.failure = (
                None if found == self._run_dir else moved_error(self._run_dir, found, step)
            )
            trainer.signals.request(signal.SIGTERM)
        if trainer.signals.requested is None and (trainer.run_dir / HALT).exists():
            log.info("%s asks the run to stop", trainer.run_dir / HALT)
            trainer.signals.request(signal.SIGINT)


@contextmanager
def watching(run_dir: Path) -> Iterator[DirectoryWatch]:
    """Hold the run directory open while the block runs."""
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield DirectoryWatch(run_dir, descriptor)
    finally:
        os.close(descriptor)
