"""Put a run back where a checkpoint left it, or refuse and say by name what does not fit."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.data.windows import Cursor
from neobert.errors import ProjectError
from neobert.export.weights import load_weights
from neobert.optim import fast_forward
from neobert.training.checkpoint.manifest import CODE
from neobert.training.checkpoint.save import CONFIG, OPTIMIZER, STATE, STATE_DIR, rng_file
from neobert.training.checkpoint.tensors import load_optimizer_tensors, restore_random_state
from neobert.training.compatibility import runtime_differences, structural_differences
from neobert.training.progress import LossWindow, Progress
from neobert.training.trainer import Trainer

log = logging.getLogger(__name__)

HINT = "give the run back what it had, or start another one in another trainer.output_dir"


def read_state(folder: Path) -> dict[str, Any]:
    """Read what a verified checkpoint says besides tensors."""
    return dict(json.loads((folder / STATE_DIR / STATE).read_text(encoding="utf-8")))


def refuse_other_run(folder: Path, config: RunConfig) -> None:
    """Raise `ProjectError` CKP007 where a structural key differs; log the keys that may."""
    saved = json.loads((folder / STATE_DIR / CONFIG).read_text(encoding="utf-8"))
    current = to_dict(config)
    _refuse(folder, [str(each) for each in structural_differences(saved, current)])
    for difference in runtime_differences(saved, current):
        log.info("differs from the checkpoint, as it may: %s", difference)


def refuse_other_data(folder: Path, state: Mapping[str, Any], identity: Mapping[str, str]) -> None:
    """Raise `ProjectError` CKP007 where the data or the tokenizer are not those that the run began with."""
    saved = state["identity"]
    _refuse(
        folder,
        [
            f"{name}: {str(saved.get(name))[:12]} in the checkpoint, {value[:12]} in this run"
            for name, value in sorted(identity.items())
            if saved.get(name) != value
        ],
    )


def restore(trainer: Trainer, folder: Path, state: Mapping[str, Any]) -> None:
    """Load weights, optimizer, schedule and generators, and take the progress up."""
    load_weights(trainer.task.model, folder)
    tensors = load_file(folder / STATE_DIR / OPTIMIZER)
    load_optimizer_tensors(trainer.task.model, trainer.optimizer, tensors)
    fast_forward(trainer.scheduler, state["step"])
    generators = folder / STATE_DIR / rng_file(trainer.world.rank)
    if generators.exists():
        restore_random_state(generators.read_bytes())
    _warn_where_sums_may_round_differently(state, trainer.world.size)


def resumed_progress(state: Mapping[str, Any], device: torch.device, *, is_own: bool) -> Progress:
    """Take up a checkpoint's progress; one of another run directory is not saved in this one yet."""
    step = state["step"]
    return Progress(
        loss=LossWindow(device, **state["loss_window"]),
        cursor=Cursor.from_dict(state["cursor"]),
        step=step,
        tokens_total=state["tokens_total"],
        row=state["row"],
        trained_s=state["trained_s"],
        resumed_step=step,
        saved_step=step if is_own else None,
    )


def _refuse(folder: Path, differences: list[str]) -> None:
    if differences:
        message = f"the checkpoint is another run's: {'; '.join(differences)}"
        raise ProjectError(CODE, message, HINT, str(folder))


def _warn_where_sums_may_round_differently(state: Mapping[str, Any], world_size: int) -> None:
    now = {"world_size": world_size, "num_threads": torch.get_num_threads()}
    now["versions"] = {**state["versions"], "torch": torch.__version__}
    for name, value in now.items():
        if state[name] != value:
            log.warning(
                "%s was %s and is %s: the run goes on with the same samples, but not to the last bit",
                name,
                state[name],
                value,
            )
