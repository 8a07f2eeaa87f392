"""Traces of a few steps, on request: torch's profiler and the history of CUDA memory, in RUN_DIR/profile/.

They observe and change no number; without their keys no hook is registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from neobert.training.loop.hooks import Hook, Stage, StepReport
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)

FOLDER = "profile"


class Recorder(Protocol):
    """Interface of a recorder of device or host activity."""

    def begin(self) -> None:
        """Start recording."""

    def end(self, path: Path | None) -> None:
        """Stop, and write the recording; None discards it."""


class KernelRecorder:
    """Operators on the host and kernels on the device, as a Chrome trace."""

    def __init__(self, device: torch.device) -> None:
        activities = {torch.profiler.ProfilerActivity.CPU}
        if device.type == "cuda":
            activities.add(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)

    def begin(self) -> None:
        """Start the profiler."""
        self._profiler.start()

    def end(self, path: Path | None) -> None:
        """Stop the profiler, and write its events for chrome://tracing or Perfetto."""
        self._profiler.stop()
        if path is not None:
            self._profiler.export_chrome_trace(str(path))


class MemoryRecorder:
    """Allocations of this process on its GPU, for https://pytorch.org/memory_viz."""

    def begin(self) -> None:
        """Start recording allocations with their stack traces."""
        torch.cuda.memory._record_memory_history()

    def end(self, path: Path | None) -> None:
        """Write the memory snapshot, and stop recording."""
        if path is not None:
            torch.cuda.memory._dump_snapshot(str(path))
        torch.cuda.memory._record_memory_history(enabled=None)


class Trace:
    """Recording of a range of steps, by a hook that starts it and one that ends it."""

    def __init__(
        self, first_step: int, last_step: int, name: str, new_recorder: Callable[[], Recorder]
    ) -> None:
        self._first_step, self._last_step = first_step, last_step
        self._name, self._new_recorder = name, new_recorder
        self._recorder: Recorder | None = None

    def start(self, trainer: Trainer, _report: StepReport) -> None:
        """Begin to record before the first step, as the last hook of the step before it."""
        if trainer.progress.step == self._first_step - 1:
            self._recorder = self._new_recorder()
            self._recorder.begin()

    def stop(self, trainer: Trainer, _report: StepReport) -> None:
        """Write the trace after the last step, as its first hook."""
        if trainer.progress.step == self._last_step and self._recorder is not None:
            self._end(trainer.run_dir / FOLDER / self._name.format(rank=trainer.world.rank))

    def close(self) -> None:
        """Discard a recording whose last step this session did not reach."""
        if self._recorder is not None:
            log.warning("no %s: the session ended before step %d", self._name, self._last_step)
            self._end(None)

    def _end(self, path: Path | None) -> None:
        """End the recorder. A trace that cannot be written is logged: the run continues."""
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        try:
            if path is not None:
                path.parent.mkdir(exist_ok=True)
            recorder.end(path)
        except (OSError, RuntimeError) as error:
            log.warning("%s could not be written: %s", path, error)
        else:
            if path is not None:
                log.info("wrote %s", path)


@contextmanager
def tracing(trainer: Trainer, hooks: Sequence[Hook]) -> Iterator[list[Hook]]:
    """Yield the hooks with those of the configured traces added; discard open recordings after the block."""
    traces = [*requested(trainer)]
    try:
        hook = partial(Hook, name="profile", every=1)
        yield [
            *(hook(act=trace.stop, stage=Stage.CHECK) for trace in traces),
            *hooks,
            *(hook(act=trace.start, stage=Stage.LAST, at_start=True) for trace in traces),
        ]
    finally:
        for trace in traces:
            trace.close()


def requested(trainer: Trainer) -> Iterator[Trace]:
    """Yield the configured traces. A memory snapshot needs a GPU; without one it is logged and skipped."""
    config, device = trainer.config.trainer, trainer.world.device
    if config.profile_steps is not None:
        first, last = config.profile_steps
        name = f"steps_{first}-{last}_rank{{rank}}.json"
        yield Trace(first, last, name, lambda: KernelRecorder(device))
    step = config.memory_snapshot_step
    if step is not None and device.type == "cuda":
        yield Trace(step, step, f"memory_{step}_rank{{rank}}.pickle", MemoryRecorder)
    elif step is not None:
        log.warning("no memory snapshot: trainer.memory_snapshot_step needs a CUDA device")
