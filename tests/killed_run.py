"""A run that is killed in this process, before one of its optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from neobert.training.checkpoint.writer import Writer
from neobert.training.loop import steps


class Killed(BaseException):
    """A kill that no handler anticipates, like SIGKILL."""


@contextmanager
def killed_before(number: int) -> Iterator[None]:
    """Expect that the session in the block is killed before its optimizer step `number`, counted from 0.

    The thread of a save ends with a killed process, but not here: the next session would sweep away what it
    still writes, so its save is waited for.
    """
    real, numbers, start, writers = steps.run_step, count(), Writer.start, list[Writer]()

    def strike(trainer: Any) -> None:
        if next(numbers) == number:
            raise Killed
        real(trainer)

    def note(writer: Writer, job: Callable[[], None]) -> None:
        writers.append(writer)
        start(writer, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "run_step", strike)
        patch.setattr(Writer, "start", note)
        with pytest.raises(Killed):
            yield
    for writer in writers:
        writer.wait()
