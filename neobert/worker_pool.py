"""Pool of worker processes that exit when the process that started them ends."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from threading import Thread
from typing import Any

from neobert.errors import EXIT_INTERRUPTED


@contextmanager
def worker_pool(
    size: int, initialize: Callable[..., object], *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of `size` spawned processes; each first calls `initialize(*arguments)`.

    If the block raises, the workers are terminated immediately. If this process is killed, the workers exit;
    without this, `concurrent.futures` would leave them waiting forever.
    """
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(size, context, _initialize_worker, (initialize, arguments)) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def _initialize_worker(initialize: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    initialize(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(EXIT_INTERRUPTED)
