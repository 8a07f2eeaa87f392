"""Construction of a trainer from a config, fresh or restored from a checkpoint."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neobert.config.schema import RunConfig
from neobert.data.batches.windows import Cursor
from neobert.data.store.prepare import prepare
from neobert.errors import ProjectError
from neobert.objectives.step_kernels import set_torch_kernels
from neobert.optim import build_qk_clip, build_scheduler
from neobert.parallel import World, use_all_cores
from neobert.plan.epochs import epoch_steps
from neobert.plugins.hooks import PluggedHooks
from neobert.plurals import counted
from neobert.printable import printable
from neobert.progress import forward_progress
from neobert.receipt import FILE_NAME as RECEIPT
from neobert.receipt import read_receipt
from neobert.runfiles.attempt import TOKEN_ENV, attempt_token
from neobert.runfiles.checkpoint import folders
from neobert.runfiles.checkpoint.state import read_state
from neobert.runfiles.continuation import find_source_checkpoint, source_provenance
from neobert.runfiles.phases import STOP_CLOCKS, PhaseTracker
from neobert.runfiles.run_dir import CHECKPOINTS, METRICS, NEVER
from neobert.tasks.specs import spec_of
from neobert.training.checkpoint.publish import delete_temporary_files, quarantine
from neobert.training.checkpoint.restore import (
    continued_progress,
    refuse_other_data,
    refuse_other_model,
    refuse_other_run,
    refuse_other_start,
    restore,
    resumed_progress,
)
from neobert.training.guards.loss_guard import NO_SPIKES, FiniteGuard
from neobert.training.loop.signals import Signals
from neobert.training.loop.source_text import has_source_text, source_evaluation
from neobert.training.loop.task import Task
from neobert.training.prepare_model import PreparedModel, prepare_model
from neobert.training.state.train_state import LossWindow, Progress, TrainState
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.stopwatch import ALWAYS, BREAKDOWN, Stopwatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """Checkpoint that a session starts from, verified, and its state. A fresh start is None instead.

    Attributes:
        folder: the checkpoint.
        state: content of its state.json.
        source: provenance of the checkpoint of another run that this run continues on other text, or None.
        is_other_text: whether `folder` is that other run's checkpoint, and not one of this run.
    """

    folder: Path
    state: Mapping[str, Any]
    source: Mapping[str, Any] | None = None
    is_other_text: bool = False


def choose_start(config: RunConfig, run_dir: Path, *, is_restart: bool) -> StartCheckpoint | None:
    """Return the checkpoint that the config selects, or None for a fresh start. Only rank 0 calls it.

    Raises `ProjectError`: CKP008 if resume_from_checkpoint is `never` and the directory already holds a run,
    CKP007 if the checkpoint is missing, broken, of another run, or not the one that preflight verified.
    """
    root, selector = run_dir / CHECKPOINTS, config.trainer.resume_from_checkpoint
    if selector == NEVER:
        _refuse_used_directory(run_dir)
    delete_temporary_files(root)
    found, rejected = folders.find_checkpoint_and_rejected(root, selector)
    continued = config.trainer.continue_from if found is None else None
    if continued is not None:
        found = find_source_checkpoint(continued)
    refuse_other_start(found, read_receipt(run_dir / RECEIPT).start, run_dir, is_restart=is_restart)
    if found is None:
        return None
    folder, manifest = found
    state = read_state(folder, manifest.step)
    if continued is not None:
        refuse_other_model(folder, config)
        log.info("continuing %s on other text, from step %d", folder, manifest.step)
        return StartCheckpoint(folder, state, source_provenance(folder, state), is_other_text=True)
    refuse_other_run(folder, config)
    quarantine(root, rejected, folder.name)
    log.info("resuming from %s, step %d", folder, manifest.step)
    return StartCheckpoint(folder, state, state.get("source"))


def _refuse_used_directory(run_dir: Path) -> None:
    metrics, saved = run_dir / METRICS, folders.checkpoint_steps(run_dir / CHECKPOINTS)
    if saved or (metrics.exists() and metrics.stat().st_size):
        raise ProjectError(
            "CKP008",
            "this directory already holds a run, but trainer.resume_from_checkpoint is never",
            "resume with --resume auto, or set another trainer.output_dir",
            str(run_dir),
        )


def build_trainer(
    config: RunConfig,
    run_dir: Path,
    world: World,
    ready: PreparedModel,
    signals: Signals,
    start: StartCheckpoint | None,
) -> Trainer:
    """Build the trainer of a model with its scheduler, and restore `start` unless it is None.

    Raises `ProjectError` if `start` does not match the data, the model or the optimizer.
    """
    task, module, optimizer = ready
    if start is not None:
        refuse_other_data(start.folder, start.state, task.identity, is_other_text=start.is_other_text)
    limits, in_epochs = config.trainer, epochs_to_steps(config, task, world)
    max_steps = limits.max_steps if in_epochs is None else min(limits.max_steps, in_epochs)
    progress = _initial_progress(start, run_dir, world.device)
    trainer = Trainer(
        config=config,
        max_steps=max_steps,
        run_dir=run_dir,
        world=world,
        task=task,
        module=module,
        optimizer=optimizer,
        scheduler=build_scheduler(optimizer, config.scheduler, max_steps),
        batches=task.batches(progress.cursor),
        state=TrainState(progress=progress),
        signals=signals,
        stopwatch=Stopwatch(world.device, BREAKDOWN if config.trainer.timing_breakdown else ALWAYS),
        guard=FiniteGuard(
            world.device,
            run_dir / f"nonfinite_rank{world.rank}.json",
            config.trainer.logging_steps,
            world.all_reduce_sum,
            config.guard if spec_of(config).has_one_loss(config) else NO_SPIKES,
            reports="nonfinite_rank*.json" if world.size > 1 else "",
        ),
        plugged_hooks=PluggedHooks.from_config(
            config, {} if start is None else start.state, is_main=world.is_main
        ),
        qk_clip=build_qk_clip(config.optimizer, task.model),
        source=None if start is None else start.source,
    )
    if start is not None:
        restore(trainer, start.folder, start.state, is_other_text=start.is_other_text)
    if in_epochs is not None and in_epochs > max_steps:
        ends = f"trainer.max_steps {max_steps:,} ends the run before trainer.max_epochs {limits.max_epochs:g}"
        trainer.state.warn("epochs_cut_short", f"{ends} ({in_epochs:,} steps)")
    return trainer


def epochs_to_steps(config: RunConfig, task: Task, world: World) -> int | None:
    """Convert `max_epochs` to optimizer steps; None if it is not set or the epoch's size is unknown."""
    epochs = config.trainer.max_epochs
    microbatches = None if epochs is None else task.microbatches_per_epoch()
    if microbatches is None:
        return None
    steps = epoch_steps(config.trainer, microbatches, world.dp_size)
    log.info("%g epochs of %d microbatches: %d steps", epochs, microbatches, steps)
    return steps


def _initial_progress(start: StartCheckpoint | None, run_dir: Path, device: torch.device) -> Progress:
    if start is None:
        return Progress(loss=LossWindow(device), cursor=Cursor())
    if start.is_other_text:
        assert start.source is not None
        return continued_progress(start.source, device)
    own = run_dir / CHECKPOINTS / str(start.state["step"])  # one that was set aside has another name
    is_own = start.folder.resolve() == own.resolve()
    return resumed_progress(start.state, device, is_own=is_own)


def start_world(config: RunConfig) -> World:
    """Join the ranks of a run, with all cores and seeded generators, and return the world of this rank.

    Raises `ProjectError` BUD002 if the number of ranks is not the config's.
    """
    use_all_cores()
    world = World.from_config(config)
    refuse_other_world(config, world)
    make_reproducible(config, world)
    os.environ[TOKEN_ENV] = world.on_main(attempt_token)  # only the launcher of node 0 knows it
    return world


def refuse_other_world(config: RunConfig, world: World) -> None:
    """Raise `ProjectError` BUD002 if the world size is not nproc_per_node x nnodes of the config."""
    declared = config.distributed.nproc_per_node * config.distributed.nnodes
    if world.size != declared:
        started = counted(world.size, "process", "processes")
        raise ProjectError(
            "BUD002",
            f"nproc_per_node x nnodes is {declared}, but the run has {started}",
            "start the run with `neobert-launch train`, or set nproc_per_node and nnodes to match",
            "distributed",
        )


def make_reproducible(config: RunConfig, world: World) -> None:
    """Seed Python, numpy and torch, and set torch's kernel options: deterministic kernels on a CPU."""
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    set_torch_kernels(config, world.device.type)
    # Filling costs time, and nothing reads it. torch makes the attribute by replacing its module's class.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def log_prepared_text(report: Mapping[str, Any]) -> None:
    """Log the source of each split and its numbers of documents and tokens."""
    for split, name in (("train", "training"), ("eval", "evaluation")):
        if split in report:
            counts = report[split]
            sizes = f"{counts['documents']:,} documents, {counts['tokens']:,} tokens"
            log.info("%s text: %s: %s", name, printable(counts["source"]), sizes)


def assemble(
    config: RunConfig,
    run_dir: Path,
    world: World,
    signals: Signals,
    start: StartCheckpoint | None,
    phases: PhaseTracker | None = None,
) -> Trainer:
    """Prepare the data, on rank 0 first, then the model, and build the trainer.

    Raises `StopRequested` if a stop is requested while data is prepared, and `ProjectError` for data, a model
    or a checkpoint that cannot be used.

    Args:
        start: checkpoint to restore; None for a fresh start.
        phases: receiver of the progress; None: a new one.
    """
    phases = phases or PhaseTracker()
    with signals.raise_on_request(), world.main_first(), forward_progress(phases.describe):
        prepared = prepare(config, phases.tick)
    log_prepared_text(prepared.report)
    ready = prepare_model(config, prepared, world, is_fresh=start is None, on_progress=phases.tick)
    trainer = build_trainer(config, run_dir, world, ready, signals, start)
    trainer.phases = phases
    # Without a text, a stop request waits for the first step, which saves the weights.
    if has_source_text(config, trainer.source):
        with signals.raise_on_request(), world.main_first(), forward_progress(phases.describe):
            trainer.source_evaluation = source_evaluation(
                config, trainer.source, prepared, world, phases.tick
            )
    for name, clock in STOP_CLOCKS.items():
        if name in os.environ:
            signals.stop_by(float(os.environ[name]), phases.stopping_s, clock)
    return trainer
