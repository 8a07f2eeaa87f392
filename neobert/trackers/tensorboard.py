"""TensorBoard tracker: event files in `tensorboard/` of the run directory (`tensorboard --logdir RUN_DIR`).

It uses the event writer of the tensorboard package. `torch.utils.tensorboard` needs the same package, and
would import torch in every process that reads the schema.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from neobert.trackers.tracker import TrackedRun, Tracker

FOLDER = "tensorboard"


class TensorBoardSession:
    """TensorBoard tracker: writes the metrics of a session to a new event file.

    The config is not logged: it is in resolved.json in the run directory.
    """

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer: Any = EventFileWriter(str(run.run_dir / FOLDER))
        # Makes TensorBoard hide this step and later ones in earlier files: this session logs them again.
        start = SessionLog(status=SessionLog.START)
        self._write(run.first_step, session_log=start)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write each metric as a scalar and flush the file, so that a killed run loses no values."""
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step, summary=self._summary(value=scalars))

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _write(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **content))
        self._writer.flush()


TENSORBOARD = Tracker(
    name="tensorboard",
    package="tensorboard",
    requirement="tensorboard>=2.20",
    start=TensorBoardSession,
    folder=lambda run_dir, _settings: run_dir / FOLDER,
)
