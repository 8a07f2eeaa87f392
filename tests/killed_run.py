"""A run that is killed in this process, before one of its optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from neobert.training.loop import steps


class Killed(BaseException):
    """A kill that no handler anticipates, like SIGKILL."""


@contextmanager
def killed_before(number: int) -> Iterator[None]:
    """Expect that the session in the block is killed before its optimizer step `number`, counted from 0."""
    real, numbers = steps.run_step, count()

    def strike(trainer: Any) -> None:
        if next(numbers) == number:
            raise Killed
        real(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "run_step", strike)
        with pytest.raises(Killed):
            yield
