"""Checkpoint writer thread, one job at a time, and messages between all ranks' writer threads.

A thread needs no second copy of the tensors, and ends with the trainer, whereas an orphaned process could
write a checkpoint into a later session. Copying, writing, syncing and hashing release the GIL, so training is
not slowed down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch.distributed as dist

from neobert.parallel import World


class WriterThread:
    """Background thread with at most one job in flight, and statistics of waits for it.

    Attributes:
        num_waits: number of jobs that waited for the previous job.
        waited_s: total seconds of these waits.
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
        """Return whether the last job has ended and `settle` has not been called for it."""
        return self._job is not None and self._job.done()

    def start(self, job: Callable[[], None]) -> None:
        """Start a job. Requires a call of `settle` for the previous job."""
        assert self._job is None
        self._job = self._thread.submit(job)

    def settle(self) -> None:
        """Wait for the job in flight, if there is one, and raise its exception."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def wait(self) -> None:
        """Wait for the job in flight without raising its exception."""
        if self._job is not None:
            wait([self._job])

    def wait_for_previous(self) -> None:
        """Wait for the job in flight without raising its exception, and count the wait."""
        if self.is_busy:
            started_s = time.perf_counter()
            self.num_waits += 1
            self.wait()
            self.waited_s += time.perf_counter() - started_s

    def close(self) -> None:
        """Wait for the job in flight without raising its exception, and end the thread."""
        self._thread.shutdown(wait=True)


class WritersGroup:
    """Separate gloo process group for the writer threads.

    All ranks must create it. Collectives in a group are matched by their order: in the training group, a
    writer's broadcast could be matched with another rank's all-reduce.
    """

    def __init__(self, world: World) -> None:
        self.group = dist.new_group(backend="gloo") if world.size > 1 else None

    def send(self, message: Any) -> None:
        """Send a picklable message from rank 0 to the other ranks, which call `receive`."""
        if self.group is not None:
            dist.broadcast_object_list([message], src=0, group=self.group)

    def receive(self) -> Any:
        """Wait for the next message from rank 0, and return it."""
        received: list[Any] = [None]
        dist.broadcast_object_list(received, src=0, group=self.group)
        return received[0]
