"""A run that something happens to in this process, such as a kill before one of its optimizer steps."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from neobert.objectives import TokenObjective
from neobert.training.checkpoint.writer import WriterThread
from neobert.training.loop import steps


class Killed(BaseException):
    """A kill that no handler anticipates, like SIGKILL."""


def kill() -> None:
    raise Killed


@contextmanager
def struck(owner: Any, name: str, number: int, strike: Callable[[], None]) -> Iterator[None]:
    """Have `strike` happen before call `number`, counted from 0, of a function.

    The thread of a save ends with a killed process, but not here: the next session would sweep away what it
    still writes, so its save is waited for.
    """
    real, numbers, start, writers = getattr(owner, name), count(), WriterThread.start, list[WriterThread]()

    def strikes(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) == number:
            strike()
        return real(*args, **kwargs)

    def note(writer: WriterThread, job: Callable[[], None]) -> None:
        writers.append(writer)
        start(writer, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, strikes)
        patch.setattr(WriterThread, "start", note)
        yield
    for writer in writers:
        writer.wait()


def change_losses(
    monkeypatch: pytest.MonkeyPatch, calls: Sequence[int], change: Callable[[Any], Any]
) -> None:
    """Change the losses of these microbatches, training and evaluation, counted from 0."""
    real, numbers = TokenObjective.forward, count()

    def forward(self: TokenObjective, *args: Any, **kwargs: Any) -> Any:
        loss = real(self, *args, **kwargs)
        return change(loss) if next(numbers) in calls else loss

    monkeypatch.setattr(TokenObjective, "forward", forward)


@contextmanager
def killed_before(number: int) -> Iterator[None]:
    """Expect that the session in the block is killed before its optimizer step `number`, counted from 0."""
    with struck(steps, "run_step", number, kill), pytest.raises(Killed):
        yield
