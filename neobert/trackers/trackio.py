"""Trackio tracker: a local dashboard for several runs (`trackio show --project NAME`).

Trackio writes to $TRACKIO_DIR, or to `trackio` in the Hugging Face cache, so that one dashboard shows the
runs of all run directories. No data leaves the machine unless TRACKIO_SPACE_ID is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neobert.trackers.tracker import Settings, TrackedRun, Tracker

HASH_DIGITS = 6


class TrackioSession:
    """Trackio session; a resumed run appends to its earlier Trackio run.

    Trackio identifies a run by its name, so the name ends with digits of the run ID, which distinguish
    `a/demo` from `b/demo`.
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
        """Log the metrics of a step to the Trackio run."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write the remaining metrics and finish the Trackio run."""
        self._run.finish()


def trackio_folder(_run_dir: Path, _settings: Settings) -> Path:
    """Return Trackio's database folder: $TRACKIO_DIR, or `trackio` in the Hugging Face cache."""
    cache = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("TRACKIO_DIR") or Path(cache) / "trackio")


TRACKIO = Tracker(
    name="trackio",
    package="trackio",
    requirement="trackio>=0.43",
    start=TrackioSession,
    folder=trackio_folder,
)
