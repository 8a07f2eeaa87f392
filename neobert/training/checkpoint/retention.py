"""Checkpoint retention: removal of old checkpoints and the link `best`. A failed removal is only logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from neobert.config.schema import TrainerConfig
from neobert.errors import ProjectError
from neobert.plan.saves import MIN_KEPT, SUPERSEDED_KEPT
from neobert.runfiles.checkpoint.folders import BEST, checkpoint_steps, superseded_checkpoints
from neobert.runfiles.checkpoint.manifest import add_metrics, read_manifest
from neobert.tasks.metric import best_step
from neobert.tasks.specs import is_higher_better
from neobert.training.checkpoint.publish import point_link, remove

log = logging.getLogger(__name__)


def apply_retention(root: Path, trainer: TrainerConfig, resumed_step: int | None) -> None:
    """Update the link `best` and remove checkpoints beyond `save_total_limit`, after a complete save.

    Never removed: the newest two, the best, the one that the session started from (`resumed_step`, None if
    none), and multiples of `save_keep_every`. An `OSError` is logged, because the save itself has succeeded.
    """
    try:
        protected = {step for step in (resumed_step, link_best(root, trainer)) if step is not None}
        for step in remove_old_checkpoints(
            root, trainer.save_total_limit, trainer.save_keep_every, frozenset(protected)
        ):
            log.info("removed checkpoint %d, beyond save_total_limit %d", step, trainer.save_total_limit)
        for name in remove_superseded(root):
            log.info("removed %s: only the newest superseded checkpoint is kept", name)
    except OSError as error:
        log.warning("no checkpoint was removed, because the folder could not be listed: %s", error)


def record_metrics(root: Path, trainer: TrainerConfig, step: int, metrics: Mapping[str, float]) -> None:
    """Add evaluation metrics to the checkpoint of a step, and update the link `best`.

    Used if a stop interrupted the evaluation before the checkpoint was saved. A failure is logged.
    """
    try:
        add_metrics(root / str(step), metrics)
    except (OSError, ProjectError) as error:
        log.warning(
            "metrics were not added to checkpoint %d, so `best` will not consider it: %s", step, error
        )
    link_best(root, trainer)


def link_best(root: Path, trainer: TrainerConfig) -> int | None:
    """Point `best` at the best checkpoint and return its step.

    Returns None if the config names no metric, or if no checkpoint was evaluated. An `OSError` is logged.
    """
    metric = trainer.metric_for_best_model
    if metric is None:
        return None
    judged = {step: _read_metrics(root / str(step)) for step in checkpoint_steps(root)}
    step = best_step(judged, metric, is_higher_better=is_higher_better(trainer, metric))
    try:
        if step is None:
            (root / BEST).unlink(missing_ok=True)
        else:
            point_link(root, BEST, str(step))
    except OSError as error:
        log.warning("the link to the best checkpoint could not be updated: %s", error)
    return step


def remove_old_checkpoints(root: Path, limit: int, keep_every: int, protected: frozenset[int]) -> list[int]:
    """Remove the oldest checkpoints beyond `limit` (0: no limit); return the removed steps.

    Keeps steps in `protected`, multiples of `keep_every`, and always the newest two.
    """
    if not limit:
        return []
    older = checkpoint_steps(root)[: -max(limit, MIN_KEPT)]
    doomed = [step for step in older if step not in protected and not (keep_every and step % keep_every == 0)]
    return [step for step in doomed if _try_remove(root / str(step))]


def remove_superseded(root: Path) -> list[str]:
    """Remove superseded checkpoints (`.superseded-*`) except the newest; return the removed names."""
    found = [(path.stat().st_ctime_ns, step, path) for step, path in superseded_checkpoints(root)]
    return [path.name for *_, path in sorted(found)[:-SUPERSEDED_KEPT] if _try_remove(path)]


def _read_metrics(folder: Path) -> Mapping[str, float]:
    try:
        return read_manifest(folder).metrics
    except (ProjectError, PermissionError):
        return {}


def _try_remove(folder: Path) -> bool:
    try:
        remove(folder)
    except OSError as error:
        log.warning("%s could not be removed: %s", folder, error)
        return False
    return True
