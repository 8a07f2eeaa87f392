"""Writer thread of checkpoints, one job at a time, and messages between the writers of all ranks.

A thread, not a process: it needs no second copy of gibibytes, and it ends with the trainer, so an orphan
cannot publish a checkpoint into a later session. Copying, writing, syncing and hashing release the GIL, so
steps keep their speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch.distributed as dist

from neobert.parallel import World


class Writer:
    """Background thread with at most one job in flight; the next job waits, and the wait is counted.

    Attributes:
        num_waits: jobs that waited for the previous one.
        waited_s: time that they waited.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._job: Future[None] | None = None
        self.num_waits = 0
        self.waited_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Return whether a job is running."""
        return self._job is not None and not self._job.done()

    @property
    def is_done(self) -> bool:
        """Return whether the job in flight has ended and is not settled."""
        return self._job is not None and self._job.done()

    def start(self, job: Callable[[], None]) -> None:
        """Start a job. The previous one must be settled."""
        assert self._job is None
        self._job = self._thread.submit(job)

    def settle(self) -> None:
        """Wait for the job in flight, if there is one, and raise what it raised."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def wait(self) -> None:
        """Wait for the job in flight without settling it."""
        if self._job is not None:
            wait([self._job])

    def make_way(self) -> None:
        """Wait for the job in flight before starting another, without settling it, and count the wait."""
        if self.is_busy:
            started_s = time.perf_counter()
            self.num_waits += 1
            self.wait()
            self.waited_s += time.perf_counter() - started_s

    def close(self) -> None:
        """Wait for the job in flight, ignore its result, and end the thread."""
        self._thread.shutdown(wait=True)


class WritersGroup:
    """Separate gloo group for the writer thread, used while training uses the other groups.

    All ranks build it. Collectives match by their order in a group: on the training group, a message of the
    writer could meet an all-reduce of another rank's step.
    """

    def __init__(self, world: World) -> None:
        self.is_main = world.is_main
        self.group = dist.new_group(backend="gloo") if world.size > 1 else None

    def send(self, message: Any) -> None:
        """Send a picklable message from rank 0 to the other ranks, which call `receive`."""
        if self.group is not None:
            dist.broadcast_object_list([message], src=0, group=self.group)

    def receive(self) -> Any:
        """Return the next message of rank 0. Blocks until it arrives."""
        received: list[Any] = [None]
        dist.broadcast_object_list(received, src=0, group=self.group)
        return received[0]
