"""Restoring a run from a checkpoint, and rejection of checkpoints that do not match the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from neobert.config import to_dict
from neobert.config.removed_keys import removal_hint
from neobert.config.schema import RunConfig
from neobert.data.batches.windows import Cursor
from neobert.errors import ProjectError
from neobert.optim import fast_forward
from neobert.parallel.sharding import shard_like
from neobert.plugins.changes import refuse_edited_plugins
from neobert.plurals import listed
from neobert.printable import printable
from neobert.receipt import VerifiedStart
from neobert.runfiles.checkpoint.folders import VerifiedCheckpoint, belongs_to
from neobert.runfiles.checkpoint.refusal import CODE, unusable_checkpoint_error
from neobert.runfiles.checkpoint.state import DATA_FINGERPRINT, STATE_DIR, TOKENIZER_DIGEST, read_config
from neobert.runfiles.continuation import continuation_differences
from neobert.runfiles.resume_policy import Difference, runtime_differences, structural_differences
from neobert.training.checkpoint.content import OPTIMIZER_FILE, SHARDS, rng_file
from neobert.training.checkpoint.shards import ShardReader, read_shards
from neobert.training.checkpoint.tensors import (
    optimizer_targets,
    restore_random_state,
    set_optimizer_state,
)
from neobert.training.state.train_state import LossWindow, Progress
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)

NEW_RUN = "start a new run in another trainer.output_dir"
OTHER_DATA = (
    "restore the text and the tokenizer as they were (`training text` in the log shows what each session "
    f"read; if it is more files now, set dataset.path to patterns for the earlier ones), or {NEW_RUN}"
)
OTHER_RUN = f"restore the earlier values, or {NEW_RUN}"
OTHER_START = "run the same command again: preflight then checks the present checkpoints"


def refuse_other_run(folder: Path, config: RunConfig) -> None:
    """Raise `ProjectError` if a structural key (CKP007) or a plug-in (PLG003) differs; log the rest."""
    saved, current = read_config(folder), to_dict(config)
    _refuse_keys(folder, structural_differences(saved, current))
    refuse_edited_plugins(folder, saved, config)
    for difference in runtime_differences(saved, current):
        log.info("allowed difference from the checkpoint: %s", difference)


def refuse_other_model(folder: Path, config: RunConfig) -> None:
    """Raise `ProjectError` CKP007 if the model or optimizer differs, so that training cannot be continued."""
    _refuse_keys(folder, continuation_differences(read_config(folder), to_dict(config)))


def refuse_other_data(
    folder: Path, state: Mapping[str, Any], identity: Mapping[str, str], *, is_other_text: bool
) -> None:
    """Raise `ProjectError` CKP007 if data or tokenizer differ from the checkpoint's.

    `is_other_text`: the run continues the checkpoint on other text, so only the tokenizer is compared.
    """
    saved = state["identity"]
    differing = {
        name: f"{name}: {str(saved.get(name))[:12]} in the checkpoint, {value[:12]} in this run"
        for name, value in sorted(identity.items())
        if saved.get(name) != value and not (is_other_text and name == DATA_FINGERPRINT)
    }
    is_other_data = not differing.keys().isdisjoint((DATA_FINGERPRINT, TOKENIZER_DIGEST))
    way = OTHER_DATA if is_other_data else OTHER_RUN
    hint = f"set tokenizer.path to {folder}" if is_other_text else way
    _refuse_mismatches(folder, list(differing.values()), hint)


def restore(trainer: Trainer, folder: Path, state: Mapping[str, Any], *, is_other_text: bool) -> None:
    """Load weights, optimizer state, schedule and RNG state and, for the same text, the mean loss.

    Raises `ProjectError`: EXP003 to EXP005 if the weights cannot be used, CKP007 if other state cannot.
    """
    trainer.task.load(folder)
    load_optimizer(trainer.task.model, trainer.optimizer, folder / STATE_DIR)
    fast_forward(trainer.scheduler, state["step"])
    trainer.guard.resume(None if is_other_text else state.get("mean_loss"))  # earlier versions kept none
    generators = folder / STATE_DIR / rng_file(trainer.world.rank)
    if generators.exists():
        try:
            restore_random_state(generators.read_bytes())
        except (SafetensorError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise unusable_checkpoint_error(
                generators, f"the state of the random generators cannot be used: {error}"
            ) from error
    _warn_if_not_bit_exact(state, trainer.world.size)


def load_optimizer(model: nn.Module, optimizer: Optimizer, state_dir: Path) -> None:
    """Load the optimizer state. The saved state and the optimizer may each be sharded or not.

    Raises `ProjectError` CKP007 if the state is missing, unreadable, or of another model.
    """
    if (state_dir / SHARDS).is_dir():
        reader = ShardReader(state_dir / SHARDS)
        targets = optimizer_targets(model, optimizer, reader.shapes())
        read_shards(reader, targets)
    elif (state_dir / OPTIMIZER_FILE).is_file():
        targets = _read_whole(model, optimizer, state_dir / OPTIMIZER_FILE)
    else:
        raise unusable_checkpoint_error(state_dir, f"there is neither {OPTIMIZER_FILE} nor {SHARDS}/")
    set_optimizer_state(model, optimizer, targets)


def _read_whole(model: nn.Module, optimizer: Optimizer, path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            whole = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            saved = {name: (each.shape, each.dtype) for name, each in whole.items()}
            targets = optimizer_targets(model, optimizer, saved)
            for name, target in targets.items():
                target.copy_(shard_like(whole[name], target))
    except SafetensorError as error:
        raise unusable_checkpoint_error(path, f"the optimizer's state cannot be read: {error}") from error
    return targets


def resumed_progress(state: Mapping[str, Any], device: torch.device, *, is_own: bool) -> Progress:
    """Build the progress stored in a checkpoint; `is_own`: the checkpoint is in this run directory."""
    step, source = state["step"], state.get("source") or {"step": 0, "tokens_total": 0}
    return Progress(
        loss=LossWindow(device, **state["loss_window"]),
        cursor=Cursor.from_dict(state["cursor"]),
        step=step,
        tokens_total=state["tokens_total"],
        row=state["row"],
        trained_s=state["trained_s"],
        resumed_step=step,
        saved_step=step if is_own else None,
        first_step=source["step"],
        first_tokens=source["tokens_total"],
    )


def continued_progress(source: Mapping[str, Any], device: torch.device) -> Progress:
    """Build the progress at the first step of a run that continues a checkpoint on other text."""
    step, tokens = source["step"], source["tokens_total"]
    return Progress(
        loss=LossWindow(device),
        step=step,
        tokens_total=tokens,
        row={"step": step},
        resumed_step=step,
        first_step=step,
        first_tokens=tokens,
    )


def _refuse_keys(folder: Path, differences: Sequence[Difference]) -> None:
    way = removal_hint(each.key for each in differences)
    _refuse_mismatches(
        folder, [str(each) for each in differences], f"{way}, or {NEW_RUN}" if way else OTHER_RUN
    )


def _refuse_mismatches(folder: Path, differences: list[str], hint: str = OTHER_RUN) -> None:
    if differences:
        message = printable(f"the checkpoint belongs to another run: {listed(differences, separator='; ')}")
        raise ProjectError(CODE, message, hint, str(folder))


def _warn_if_not_bit_exact(state: Mapping[str, Any], world_size: int) -> None:
    for name, before, now in (
        ("the number of ranks", state["world_size"], world_size),
        ("the number of threads", state["num_threads"], torch.get_num_threads()),
        ("the version of torch", state["versions"]["torch"], torch.__version__),
    ):
        if before != now:
            message = "%s changed from %s to %s: the run continues with the same samples; results may differ"
            log.warning(message, name, before, now)


def refuse_other_start(
    checkpoint: VerifiedCheckpoint | None, verified: VerifiedStart | None, run_dir: Path, *, is_restart: bool
) -> None:
    """Raise `ProjectError` CKP007 if a session would not start from the checkpoint that preflight verified.

    Args:
        checkpoint: the checkpoint that the trainer found; None for a start at step 0.
        verified: the start recorded in the receipt; None if it has none, then nothing is compared.
        is_restart: whether this is a restart within a launch. The launch may have saved newer checkpoints
            than the one that preflight verified, so it may start from any checkpoint of its own run.
    """
    if verified is None or _is_verified_start(checkpoint, verified):
        return
    if is_restart and checkpoint is not None and belongs_to(run_dir, checkpoint[0]):
        return
    message = (
        f"preflight verified {_describe_start(verified.step, verified.folder)} as the start of this run, "
    )
    here = "no checkpoint" if checkpoint is None else _describe_start(checkpoint[1].step, str(checkpoint[0]))
    raise ProjectError(CODE, f"{message}but the trainer found {here}", OTHER_START, str(run_dir))


def _is_verified_start(checkpoint: VerifiedCheckpoint | None, verified: VerifiedStart) -> bool:
    if checkpoint is None or not verified.folder:
        return checkpoint is None and not verified.folder
    folder, manifest = checkpoint
    return manifest.step == verified.step and folder.resolve() == Path(verified.folder).resolve()


def _describe_start(step: int, folder: str) -> str:
    return f"step {step:,} ({folder})" if folder else "step 0, without a checkpoint,"
