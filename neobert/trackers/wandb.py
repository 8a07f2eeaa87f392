"""Weights & Biases tracker, configured by the config keys `wandb.*`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from neobert.trackers.tracker import TrackedRun, Tracker


class WandbSession:
    """W&B session: all sessions of a run directory log to one W&B run."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        settings = run.settings["wandb"]
        self._run: Any = wandb.init(
            project=settings["project"],
            entity=settings["entity"],
            name=settings["name"] or run.name,
            mode=wandb_mode(settings["mode"]),
            id=run.identity,
            resume="allow",
            dir=str(run.run_dir),
            config=dict(run.settings),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step to the W&B run."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send the remaining metrics and finish the W&B run."""
        self._run.finish()


def wandb_mode(mode: str) -> str:
    """Return the W&B mode: $WANDB_MODE if set, else `mode`. `wandb.init` itself would prefer its argument."""
    return os.environ.get("WANDB_MODE") or mode


WANDB = Tracker(
    name="wandb",
    package="wandb",
    requirement="wandb>=0.21",
    start=WandbSession,
    folder=lambda run_dir, _settings: run_dir,
)
