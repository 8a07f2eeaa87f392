"""Weights & Biases (`wandb.*` holds its settings)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from neobert.trackers.tracker import TrackedRun, Tracker


class WandbSession:
    """A session of one W&B run, which later sessions of the run directory continue."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        settings = run.settings["wandb"]
        self._run: Any = wandb.init(
            project=settings["project"],
            entity=settings["entity"],
            name=settings["name"] or run.name,
            mode=mode_of(settings["mode"]),
            id=run.identity,
            resume="allow",
            dir=str(run.run_dir),
            config=dict(run.settings),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Report values at a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send the remaining lines."""
        self._run.finish()


def mode_of(mode: str) -> str:
    """Return the mode: WANDB_MODE, else `wandb.mode`. W&B itself would prefer the argument."""
    return os.environ.get("WANDB_MODE") or mode


WANDB = Tracker(
    name="wandb",
    package="wandb",
    requirement="wandb>=0.21",
    start=WandbSession,
    folder=lambda run_dir, _settings: run_dir,
)
