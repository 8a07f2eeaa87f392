"""Refusal of model outputs that are NaN or infinite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.plurals import counted

CODE = "not-finite"
HINT = "pass another checkpoint, such as one saved before the loss became NaN"


def require_finite(values: NDArray[Any], values_name: str, folder: str) -> None:
    """Raise `ProjectError` if a row of `values` [N, K] has NaN or infinite values.

    Args:
        values_name: plural name of the values, for the message.
        folder: model folder, for the message.
    """
    bad = len(values) - int(np.isfinite(values).all(axis=1).sum())
    if bad:
        affected = f"{bad:,} of {counted(len(values), 'text')}"
        raise non_finite_error(f"the {values_name} of {affected} are NaN or infinite", folder)


def non_finite_error(message: str, folder: str) -> ProjectError:
    """Return the error for NaN or infinite outputs of the model in `folder`."""
    return ProjectError(CODE, message, HINT, folder, EXIT_TRAINING_FAILED)
