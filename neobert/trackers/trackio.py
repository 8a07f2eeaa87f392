"""Trackio: a local dashboard of several runs (`trackio show --project NAME`).

It writes to its own folder, $TRACKIO_DIR or `trackio` in the Hugging Face cache, so that one dashboard shows
the runs of all run directories. Nothing leaves the machine unless TRACKIO_SPACE_ID is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neobert.trackers.tracker import Settings, TrackedRun, Tracker

HASH_DIGITS = 6


class TrackioSession:
    """A session of one Trackio run, to which a resumed run appends.

    Trackio finds a run by its name alone: a few digits of the run directory's hash keep `a/demo` and `b/demo`
    apart.
    """

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=run.settings["trackio"]["project"],
            name=f"{run.name}-{run.identity[:HASH_DIGITS]}",
            config=dict(run.settings),
            resume="allow" if run.first_step else "never",
            auto_log_gpu=False,  # the memory of the device is among the metrics already
            auto_log_cpu=False,
            embed=False,
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Report values at a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write the remaining lines."""
        self._run.finish()


def folder_of_trackio(_run_dir: Path, _settings: Settings) -> Path:
    """Return the folder of Trackio's databases, as Trackio resolves it."""
    cache = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("TRACKIO_DIR") or Path(cache) / "trackio")


TRACKIO = Tracker(
    name="trackio",
    package="trackio",
    requirement="trackio>=0.43",
    start=TrackioSession,
    folder=folder_of_trackio,
)
