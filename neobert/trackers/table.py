"""Table of the available trackers, by their names in the config key `trackers`."""

from __future__ import annotations

from collections.abc import Iterable

from neobert.trackers.mlflow import MLFLOW
from neobert.trackers.prometheus import PROMETHEUS
from neobert.trackers.tensorboard import TENSORBOARD
from neobert.trackers.trackio import TRACKIO
from neobert.trackers.wandb import WANDB

TRACKERS = {each.name: each for each in (TRACKIO, TENSORBOARD, WANDB, MLFLOW, PROMETHEUS)}
# metrics.jsonl is not a tracker: resume and checkpoints depend on it, so it is written for any value of the
# key.
JSONL = "jsonl"
NAMES = (JSONL, *TRACKERS)


def requested_trackers(names: Iterable[str], *, with_wandb: bool) -> tuple[str, ...]:
    """Return the trackers to start, without duplicates and without jsonl, which is always written.

    Args:
        names: value of the config key `trackers`.
        with_wandb: value of the older key `wandb.enabled`, which adds wandb.
    """
    named = [*names, *(["wandb"] if with_wandb else [])]
    return tuple(name for name in dict.fromkeys(named) if name != JSONL)
