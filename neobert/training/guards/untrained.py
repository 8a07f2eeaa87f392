"""Weights that are meant to train and got no gradient."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.plurals import counted, listed

CODE = "TRN003"


def refuse_untrained(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise `ProjectError` if a trained parameter has no gradient, after the first backward pass of a run.

    Optimizers keep no state for it, so that no checkpoint could be resumed, and it would keep its random
    values to the end.
    """
    names = [name for name, each in parameters if each.requires_grad and each.grad is None]
    if names:
        raise ProjectError(
            CODE,
            f"{counted(len(names), 'weight')} of the model got no gradient in step 1: {listed(names)}",
            "use these weights in the loss, or build the model without a head (auto_class AutoModel)",
            "task",
            EXIT_TRAINING_FAILED,
        )
