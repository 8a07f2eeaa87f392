"""Plug-in errors in the training loop: a checkpoint is saved before the error ends the run."""

from __future__ import annotations

from collections.abc import Sequence

from neobert.plugins.loading import CHANGED, PluginError
from neobert.training.loop.hooks import Hook
from neobert.training.loop.steps import fit
from neobert.training.state.trainer import Trainer


def fit_with_plugins(trainer: Trainer, hooks: Sequence[Hook]) -> bool:
    """Train like `fit`; an error of a plug-in stops a run of one process like a stop request.

    The last complete step is then saved before the error is raised. Several processes cannot save, because
    the others are in the middle of a step: the run resumes from the newest checkpoint.
    """
    try:
        return fit(trainer, hooks)
    except PluginError as error:
        error.hint += f"; to resume with the edit, add a waiver of {CHANGED} to the run file"
        if trainer.world.size > 1:
            raise
        trainer.state.failure = error
        return False


def notify_saved(trainer: Trainer) -> None:
    """Notify hook plug-ins of the last checkpoint once it is complete.

    A `PluginError` becomes the failure of the run, unless the run has failed already.
    """
    try:
        trainer.plugged_hooks.notify_saved(trainer)
    except PluginError as error:
        trainer.state.failure = trainer.state.failure or error
