"""Prefetch threads. Results are requested in order, so thread timing never changes the order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar
from weakref import finalize

Result = TypeVar("Result")
JOIN_S = 5.0


class WorkerThreads:
    """Pool of daemon threads. With `count` 0, a task runs immediately in the calling thread.

    The threads are daemons because a thread that hangs in a read must not keep a failed process alive.
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [
            Thread(target=_run_tasks, args=(self._tasks,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        # Threads also end if their owner is garbage-collected without being closed.
        self._end = finalize(self, _stop_threads, self._tasks, count)

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Queue a task; `result` of the returned future raises the task's exception."""
        future: Future[Result] = Future()
        if self._threads:
            self._tasks.put((future, task))
        else:
            _run_task(future, task)
        return future

    def close(self) -> None:
        """Cancel queued tasks, and wait for running ones for at most `JOIN_S` seconds per thread."""
        if self._end.alive:
            with suppress(Empty):
                while (waiting := self._tasks.get_nowait()) is not None:
                    waiting[0].cancel()
            self._end()
        for thread in self._threads:
            thread.join(JOIN_S)


def _stop_threads(tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None], count: int) -> None:
    for _ in range(count):
        tasks.put(None)


def _run_tasks(tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (item := tasks.get()) is not None:
        _run_task(*item)


def _run_task(future: Future[Any], task: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(task())
    except BaseException as error:  # delivered through the future
        future.set_exception(error)
