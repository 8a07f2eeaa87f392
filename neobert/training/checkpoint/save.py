"""Write a checkpoint: the folder that transformers loads, and beside it what the next session needs.

model.safetensors config.json *.py tokenizer.json ...    `from_pretrained` reads these
trainer_state/optimizer.safetensors                      moments by parameter name
trainer_state/rng_rank<k>.safetensors                    generators of every rank
trainer_state/state.json                                 step, cursor, counters, digests
trainer_state/resolved.json                              the config that made it
checkpoint.json                                          the manifest, written last
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from neobert import __version__
from neobert.config import digest, to_dict
from neobert.export import write_hf_folder
from neobert.training.checkpoint import folders
from neobert.training.checkpoint.tensors import optimizer_tensors, random_state
from neobert.training.trainer import Trainer

log = logging.getLogger(__name__)

STATE_DIR = "trainer_state"
STATE = "state.json"
CONFIG = "resolved.json"
OPTIMIZER = "optimizer.safetensors"
SCHEMA_VERSION = 1


def rng_file(rank: int) -> str:
    """Name the file of a rank's generators."""
    return f"rng_rank{rank}.safetensors"


def save_checkpoint(trainer: Trainer) -> None:
    """Save this step and let older checkpoints go. All ranks call it.

    Raises `ProjectError` where a weight is no number, or where the disk refuses; earlier checkpoints stay.
    """
    progress = trainer.progress
    trainer.guard.check_weights(trainer.task.model, progress.step)
    generators = trainer.world.gather(random_state())
    if trainer.world.is_main:
        _publish(trainer, generators)
    progress.saved_step = progress.step
    trainer.mark_saved()


def _publish(trainer: Trainer, generators: list[bytes]) -> None:
    step, limit = trainer.progress.step, trainer.config.trainer.save_total_limit
    now = datetime.now(UTC).isoformat(timespec="seconds")

    def write(folder: Path) -> None:
        try:
            _write(trainer, generators, folder)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    folder = folders.publish(trainer.checkpoints, step, digest(trainer.config), now, write)
    log.info("saved %s", folder)
    resumed_step = trainer.progress.resumed_step
    protected = frozenset() if resumed_step is None else frozenset({resumed_step})
    for gone in folders.retain(trainer.checkpoints, limit, protected):
        log.info("removed checkpoint %d, beyond save_total_limit %d", gone, limit)


def _write(trainer: Trainer, generators: list[bytes], folder: Path) -> None:
    write_hf_folder(trainer.task.model, trainer.task.tokenizer_dir, folder)
    state = folder / STATE_DIR
    state.mkdir()
    save_file(optimizer_tensors(trainer.task.model, trainer.optimizer), state / OPTIMIZER)
    for rank, packed in enumerate(generators):
        (state / rng_file(rank)).write_bytes(packed)
    (state / CONFIG).write_text(json.dumps(to_dict(trainer.config), indent=2), encoding="utf-8")
    (state / STATE).write_text(json.dumps(_state(trainer), indent=2), encoding="utf-8")
    for path in folder.rglob("*.safetensors"):
        path.chmod(folder.stat().st_mode & 0o666)  # safetensors makes files that only their owner may read


def _state(trainer: Trainer) -> dict[str, Any]:
    progress = trainer.progress
    return {
        "schema_version": SCHEMA_VERSION,
        "step": progress.step,
        "cursor": progress.cursor.to_dict(),
        "tokens_total": progress.tokens_total,
        "loss_window": {"loss_sum": progress.loss.loss_sum.item(), "num_targets": progress.loss.num_targets},
        "row": progress.row,
        "trained_s": trainer.trained_s,
        "learning_rate": trainer.scheduler.get_last_lr()[0],
        "identity": dict(trainer.task.identity),
        "world_size": trainer.world.size,
        "num_threads": torch.get_num_threads(),
        "versions": {"neobert": __version__, "torch": torch.__version__},
    }
