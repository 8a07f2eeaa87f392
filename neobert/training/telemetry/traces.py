"""Optional traces of a few steps, in RUN_DIR/profile/: torch.profiler and CUDA memory snapshots.

Set by trainer.profile_steps and trainer.memory_snapshot_step. Training results do not change.
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
    """Interface of a profiler with a start and an end."""

    def begin(self) -> None:
        """Start recording."""

    def end(self, path: Path | None) -> None:
        """Stop recording and write the result to `path`, or discard it if `path` is None."""


class KernelRecorder:
    """Recorder of host operators and device kernels as a Chrome trace."""

    def __init__(self, device: torch.device) -> None:
        activities = {torch.profiler.ProfilerActivity.CPU}
        if device.type == "cuda":
            activities.add(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)

    def begin(self) -> None:
        """Start the profiler."""
        self._profiler.start()

    def end(self, path: Path | None) -> None:
        """Stop the profiler; write a trace for chrome://tracing or Perfetto unless `path` is None."""
        self._profiler.stop()
        if path is not None:
            self._profiler.export_chrome_trace(str(path))


class MemoryRecorder:
    """Recorder of CUDA memory allocations, as a snapshot for https://pytorch.org/memory_viz."""

    def begin(self) -> None:
        """Start recording allocations with their stack traces."""
        torch.cuda.memory._record_memory_history()

    def end(self, path: Path | None) -> None:
        """Write the memory snapshot to `path` unless it is None, and stop recording."""
        if path is not None:
            torch.cuda.memory._dump_snapshot(str(path))
        torch.cuda.memory._record_memory_history(enabled=None)


class Trace:
    """Recording of a range of steps, with one hook that starts it and one that ends it."""

    def __init__(
        self, first_step: int, last_step: int, name: str, new_recorder: Callable[[], Recorder]
    ) -> None:
        self._first_step, self._last_step = first_step, last_step
        self._name, self._new_recorder = name, new_recorder
        self._recorder: Recorder | None = None

    def start(self, trainer: Trainer, _report: StepReport) -> None:
        """Start recording after the step before `first_step`. Runs as the last hook of that step."""
        if trainer.progress.step == self._first_step - 1:
            self._recorder = self._new_recorder()
            self._recorder.begin()

    def stop(self, trainer: Trainer, _report: StepReport) -> None:
        """Stop recording and write the trace after `last_step`. Runs as the first hook of that step."""
        if trainer.progress.step == self._last_step and self._recorder is not None:
            self._stop_recorder(trainer.run_dir / FOLDER / self._name.format(rank=trainer.world.rank))

    def close(self) -> None:
        """Discard a recording that is still open because the session ended before `last_step`."""
        if self._recorder is not None:
            log.warning("%s was not written: the session ended before step %d", self._name, self._last_step)
            self._stop_recorder(None)

    def _stop_recorder(self, path: Path | None) -> None:
        """Stop the recorder and write the trace, if `path` is given. A failure to write is only logged."""
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
def with_trace_hooks(trainer: Trainer, hooks: Sequence[Hook]) -> Iterator[list[Hook]]:
    """Yield the hooks plus the hooks of the configured traces; discard open recordings after the block."""
    traces = [*configured_traces(trainer)]
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


def configured_traces(trainer: Trainer) -> Iterator[Trace]:
    """Yield the configured traces. A memory snapshot without a GPU is skipped with a warning."""
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
