"""Content of a checkpoint, and writing of its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from neobert import __version__
from neobert.config import to_dict
from neobert.export.results import add_sections, training_section
from neobert.file_modes import share_like_folder
from neobert.runfiles.checkpoint.state import CONFIG, STATE, STATE_DIR
from neobert.training.checkpoint.parts import PARTS, open_joined_parts
from neobert.training.state.trainer import Trainer

OPTIMIZER_FILE = "optimizer.safetensors"
SHARDS = "optimizer"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDraft:
    """Snapshot of a run, written to disk while training continues.

    Attributes:
        taken_at_s: monotonic time of the snapshot.
        metrics: evaluation metrics of this step; empty if it was not evaluated.
        weights: copies by name: on rank 0 of all weights; in a sharded run, of this rank's rows.
        optimizer: optimizer state by `KEY/PARAMETER`; in a sharded run, this rank's shards.
        loss_sum: summed loss since the last metrics line; None on ranks other than 0.
        generators: packed RNG state of every rank, on rank 0.
        state: content of state.json without the loss.
    """

    step: int
    taken_at_s: float
    metrics: Mapping[str, float]
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    loss_sum: Tensor | None
    generators: list[bytes]
    state: dict[str, Any]
    created_utc: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def rng_file(rank: int) -> str:
    """Return the name of the file with a rank's RNG state."""
    return f"rng_rank{rank}.safetensors"


def state_content(trainer: Trainer) -> dict[str, Any]:
    """Return the content of state.json without the loss. Does not wait for the device."""
    progress = trainer.progress
    return {
        "schema_version": SCHEMA_VERSION,
        "step": progress.step,
        "cursor": progress.cursor.to_dict(),
        "tokens_total": progress.tokens_total,
        "loss_window": {"num_targets": progress.loss.num_targets},
        "mean_loss": trainer.guard.mean_loss,
        "row": None if progress.row is None else dict(progress.row),
        "trained_s": trainer.state.trained_s,
        "learning_rate": trainer.scheduler.get_last_lr()[0],
        "identity": dict(trainer.task.identity),
        "source": trainer.source,
        "plugins": trainer.plugged_hooks.state(),
        "world_size": trainer.world.size,
        "num_threads": torch.get_num_threads(),
        "versions": {"neobert": __version__, "torch": torch.__version__},
    }


def write_content(trainer: Trainer, draft: CheckpointDraft, folder: Path) -> None:
    """Write the checkpoint files of rank 0 from a snapshot, on the writer thread. Raises `OSError`."""
    state = folder / STATE_DIR
    state.mkdir(exist_ok=True)
    try:
        is_sharded = trainer.world.is_sharded
        weights = open_joined_parts(folder, list(draft.weights)) if is_sharded else draft.weights
        trainer.task.save(folder, weights)
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        add_sections(folder, training_section([{**draft.state, "metrics": draft.metrics}]))
        if not is_sharded:
            save_file(dict(draft.optimizer), state / OPTIMIZER_FILE)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    for rank, packed in enumerate(draft.generators):
        (state / rng_file(rank)).write_bytes(packed)
    (state / CONFIG).write_text(json.dumps(to_dict(trainer.config), indent=2), encoding="utf-8")
    assert draft.loss_sum is not None
    window = draft.state["loss_window"] | {"loss_sum": draft.loss_sum.item()}
    content = json.dumps(draft.state | {"loss_window": window}, indent=2)
    (state / STATE).write_text(content, encoding="utf-8")
    share_like_folder(folder)
