"""The table of trackers: values of `trackers` and what they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neobert.trackers.tensorboard import TENSORBOARD
from neobert.trackers.trackio import TRACKIO
from neobert.trackers.wandb import WANDB

if TYPE_CHECKING:
    from neobert.config.schema import RunConfig

TRACKERS = {each.name: each for each in (TRACKIO, TENSORBOARD, WANDB)}
# metrics.jsonl is not a tracker: resume and checkpoints depend on it, so it is written whatever the key says.
JSONL = "jsonl"
NAMES = (JSONL, *TRACKERS)


def requested(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the run's trackers, each once. `wandb.enabled` is the older way to name wandb."""
    named = [*config.trackers, *(["wandb"] if config.wandb.enabled else [])]
    return tuple(name for name in dict.fromkeys(named) if name != JSONL)
