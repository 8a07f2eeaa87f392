"""One session (process lifetime) of a run, from the checked config to outcome.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neobert.atomic_write import write_atomically
from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_OK, EXIT_TRAINING_FAILED, ProjectError
from neobert.parallel import World
from neobert.plan.hardware import assumptions_for
from neobert.plan.size import peak_at_precision
from neobert.plugins.loop import fit_with_plugins, notify_saved
from neobert.receipt import FILE_NAME as RECEIPT
from neobert.receipt import read_receipt
from neobert.runfiles.attempt import is_replaced, require_current
from neobert.runfiles.continuation import FILE_NAME as CONTINUED
from neobert.runfiles.phases import EVALUATION, SAVE, START, STEP, PhaseTracker
from neobert.runfiles.run_dir import (
    METRICS,
    Status,
    clear_outcome,
    has_outcome,
    heartbeat_path,
    write_outcome,
)
from neobert.tasks.weights import require_intact_weights
from neobert.trackers.background import BackgroundTracker, close_trackers, open_trackers
from neobert.trackers.identity import run_identity
from neobert.trackers.table import requested_trackers
from neobert.trackers.tracker import TrackedRun
from neobert.training.checkpoint.publish import set_aside_after
from neobert.training.checkpoint.save import Saver
from neobert.training.guards.degradation import CompilationWatch, DegradationWatch
from neobert.training.guards.first_loss import FirstLossCheck, first_loss_check
from neobert.training.guards.forgetting import ForgettingWatch, forgetting_watch
from neobert.training.guards.health import HealthWatch, PlateauWatch
from neobert.training.guards.nothing_learned import warn_if_nothing_learned
from neobert.training.guards.sparse_attention import SparseAttentionWatch
from neobert.training.guards.stopping import (
    DirectoryWatch,
    EarlyStopping,
    build_early_stopping,
    consume_halt,
    watch_directory,
)
from neobert.training.loop.assembly import (
    StartCheckpoint,
    assemble,
    choose_start,
    start_world,
)
from neobert.training.loop.hooks import GarbageCollector, Hook, Stage, StepReport, collect_between_steps
from neobert.training.loop.signals import Signals, StopRequested
from neobert.training.loop.steps import evaluate
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.guess_log import GuessLog
from neobert.training.telemetry.heartbeat import Heartbeat
from neobert.training.telemetry.jsonl_writer import JsonlWriter, trim_heartbeat
from neobert.training.telemetry.metric_files import resume_history, write_metric_files
from neobert.training.telemetry.metrics import MetricsWriter, TrainingLog
from neobert.training.telemetry.traces import with_trace_hooks

log = logging.getLogger(__name__)

Attach = Callable[[Trainer], Sequence[Hook]]


def run_session(
    config: RunConfig,
    run_dir: Path,
    signals: Signals,
    attach: Attach = lambda _: (),
    *,
    is_restart: bool = False,
) -> int:
    """Train until the run is complete, stopped or failed; return the exit code.

    `attach` receives the trainer before its first step and returns additional hooks.
    `is_restart`: this is a restart within a launch, and may start from a checkpoint of that launch.
    If choosing the checkpoint fails, the directory is unchanged. Later, every end writes `outcome.json`.
    """
    world = start_world(config)
    start = world.on_main(partial(choose_start_checkpoint, config, run_dir, is_restart=is_restart))
    step = 0 if start is None else start.state["step"]
    trainer, phases = None, PhaseTracker()
    try:
        with (
            watch_directory(run_dir) as directory,
            write_heartbeats(config, run_dir, world, start, phases) as heartbeat,
        ):
            trainer = assemble(config, run_dir, world, signals, start, phases)
            is_complete = train(trainer, heartbeat, directory, attach(trainer))
    except StopRequested:
        is_complete = False
    except Exception as error:
        if trainer is not None or signals.requested is None or world.size == 1:
            record_failure(run_dir, step if trainer is None else trainer.progress.step, error)
            raise
        log.info("another rank has stopped already: %s", error)
        is_complete = False
    step = step if trainer is None else trainer.progress.step
    status: Status = "finished" if is_complete else signals.status
    exit_code = EXIT_OK if is_complete else signals.exit_code
    if world.is_main:
        record_end(run_dir, status, exit_code, step)
        if status != "preempted":  # after a preemption the job is queued again, and nothing has halted it yet
            consume_halt(run_dir)
    log.info("%s at step %d", status, step)
    if trainer is not None:  # a rank that was stopped before may be the only one so far
        world.wait_for_all()
    return exit_code


def choose_start_checkpoint(config: RunConfig, run_dir: Path, *, is_restart: bool) -> StartCheckpoint | None:
    """Return the checkpoint to start from, or None for a fresh start, and remove outcome.json. Rank 0 only.

    A fresh start verifies the files of `model.pretrained_checkpoint`. Raises `ProjectError` if the checkpoint
    or these files cannot be used, and TRN004 if a later launch has taken over the run.
    """
    require_current(run_dir)
    start = choose_start(config, run_dir, is_restart=is_restart)
    if start is None:
        require_intact_weights(config)
    clear_outcome(run_dir)
    return start


def record_end(run_dir: Path, status: Status, exit_code: int, step: int) -> None:
    """Write outcome.json. An `OSError` is logged: the end of the run does not change."""
    try:
        write_outcome(run_dir, status, exit_code, step)
    except OSError as error:
        log.warning("outcome.json could not be written (%s); the run %s", error, status)


def record_failure(run_dir: Path, step: int, error: Exception) -> None:
    """Write outcome.json of a failed session, unless it exists or a later launch has taken over the run.

    Only the first rank to fail writes it: the other ranks fail as a consequence. An `OSError` is ignored.
    """
    if has_outcome(run_dir) or is_replaced(run_dir):
        return
    if not isinstance(error, ProjectError):
        error = ProjectError("", f"{type(error).__name__}: {error}", exit_code=EXIT_TRAINING_FAILED)
    with suppress(OSError):
        write_outcome(run_dir, "failed", error.exit_code, step, error.message, error.code, error.hint)


@contextmanager
def write_heartbeats(
    config: RunConfig, run_dir: Path, world: World, start: StartCheckpoint | None, phases: PhaseTracker
) -> Iterator[Heartbeat]:
    """Write this rank's heartbeats inside the `with` block, to a file truncated to the resume step.

    `start`: checkpoint to resume from, or None. Raises `ProjectError` RCP001 without a valid receipt.
    """
    path = heartbeat_path(run_dir, world.rank)
    first_seq = trim_heartbeat(path, None if start is None else start.state["step"])
    receipt = read_receipt(run_dir / RECEIPT)
    heartbeat = Heartbeat(path, world.rank, phases, first_seq, receipt.unguarded, receipt.config_digest)
    with heartbeat.repeat_every(config.watchdog.heartbeat_interval_s):
        yield heartbeat


def train(
    trainer: Trainer, heartbeat: Heartbeat, directory: DirectoryWatch, added_hooks: Sequence[Hook] = ()
) -> bool:
    """Train with all hooks and save a last checkpoint; return True if complete, False if stopped early.

    `added_hooks` run in addition to the hooks of `build_hooks`. After the checkpoint, raises the failure in
    `trainer.state.failure`, if there is one.
    """
    # Preparing text takes minutes: if the directory was deleted since, opening files would recreate it.
    directory.check(trainer)
    with open_telemetry(trainer) as line:
        heartbeat.beat(trainer, START)
        saver = Saver(trainer, line.sync)
        try:
            hooks = [*build_hooks(trainer, heartbeat, line, saver, directory), *added_hooks]
            with with_trace_hooks(trainer, hooks) as hooks, collect_between_steps():
                is_complete = fit_with_plugins(trainer, hooks)
            trainer.phases.enter(SAVE)
            save_checkpoint(trainer, heartbeat, saver, directory)
            saver.finish(trainer, is_complete=is_complete)
            notify_saved(trainer)
            if trainer.state.failure is not None:
                raise trainer.state.failure
            saver.close()
        except Exception:
            saver.close()
            heartbeat.beat(trainer, "failed")
            raise
        heartbeat.beat(trainer, "finished" if is_complete else trainer.signals.status)
    return is_complete


def build_hooks(
    trainer: Trainer, heartbeat: Heartbeat, line: MetricsWriter, saver: Saver, directory: DirectoryWatch
) -> list[Hook]:
    """Build the hooks of a run: metrics, evaluation, guards, checkpoints. `Stage` defines their order."""
    every = trainer.config.trainer
    guess_log = GuessLog(trainer)

    def run_evaluation(trainer: Trainer, _report: StepReport) -> Mapping[str, Any]:
        if trainer.task.evaluation is None:
            return {}
        heartbeat.beat(trainer, EVALUATION)
        metrics = evaluate(trainer)
        directory.check(trainer)  # the evaluation may have taken long
        guess_log.add(trainer)
        return metrics

    def update_saver(trainer: Trainer, report: StepReport) -> None:
        saver.after_step(trainer, report)
        if saver.writes_s:
            trainer.phases.record_duration(SAVE, saver.writes_s[-1])

    def write_heartbeat(trainer: Trainer, _report: StepReport) -> None:
        heartbeat.beat(trainer, STEP)

    def begin_save(trainer: Trainer, _report: StepReport) -> None:
        save_checkpoint(trainer, heartbeat, saver, directory)

    logged = partial(Hook, name="logging", every=every.logging_steps)
    evaluated = partial(Hook, name="evaluation", stage=Stage.REACT, every=1)
    degradation, sparse = DegradationWatch(), SparseAttentionWatch()
    watches = [CompilationWatch(trainer.progress.step)] if every.torch_compile else []
    return [
        Hook(name="checkpoint", act=directory, stage=Stage.CHECK, every=1),
        *(Hook(name="logging", act=watch, stage=Stage.CHECK, every=1) for watch in watches),
        Hook(name="garbage", act=GarbageCollector(), stage=Stage.CHECK, every=every.logging_steps),
        logged(act=degradation, stage=Stage.COUNT),
        logged(act=TrainingLog(trainer, peak_flops(trainer)), stage=Stage.MEASURE),
        Hook(
            name="evaluation",
            act=run_evaluation,
            stage=Stage.EVALUATE,
            every=every.eval_steps,
            at_start=True,
        ),
        Hook(name="logging", act=line, stage=Stage.RECORD, every=1, at_start=True),
        logged(act=PlateauWatch(every.logging_steps), stage=Stage.REACT),
        logged(act=HealthWatch(), stage=Stage.REACT),
        logged(act=sparse, stage=Stage.REACT),
        *(evaluated(act=each) for each in early_stopping_hooks(trainer)),
        *(evaluated(act=each, at_start=True) for each in forgetting_hooks(trainer)),
        evaluated(act=warn_if_nothing_learned),
        Hook(name="checkpoint", act=update_saver, stage=Stage.REACT, every=1, at_start=True),
        logged(act=write_heartbeat, stage=Stage.ANNOUNCE, at_start=True),
        Hook(name="checkpoint", act=begin_save, stage=Stage.SAVE, every=every.save_steps),
        logged(act=degradation.enforce, stage=Stage.LAST, at_end=False),
        logged(act=sparse.enforce, stage=Stage.LAST),
        *trainer.plugged_hooks.hooks(trainer),
    ]


def early_stopping_hooks(trainer: Trainer) -> list[EarlyStopping]:
    """Return the early-stopping hook with its state at the resume step; empty if it is not configured.

    If patience had already run out, `max_steps` is set to the current step.
    """
    first_step = trainer.progress.first_step
    stopping = trainer.world.on_main(
        partial(build_early_stopping, trainer.config, trainer.run_dir, first_step)
    )
    if stopping is None:
        return []
    stopping.end_if_due(trainer)
    return [stopping]


def forgetting_hooks(trainer: Trainer) -> list[ForgettingWatch | FirstLossCheck]:
    """Return the hooks that compare the loss on the source text; empty if none is evaluated."""
    if trainer.source_evaluation is None:
        return []
    check = trainer.world.on_main(partial(first_loss_check, trainer.config))
    return [
        trainer.world.on_main(partial(forgetting_watch, trainer.run_dir)),
        *([] if check is None else [check]),
    ]


def save_checkpoint(trainer: Trainer, heartbeat: Heartbeat, saver: Saver, directory: DirectoryWatch) -> None:
    """Start a checkpoint of this step, unless one exists or is being written."""
    if saver.is_due(trainer):
        directory.check(trainer)
        heartbeat.beat(trainer, SAVE)
        saver.begin(trainer)


@contextmanager
def open_telemetry(trainer: Trainer) -> Iterator[MetricsWriter]:
    """Open metrics.jsonl, truncated to the resume step, and the trackers; close them after the block.

    Other ranks than 0 get a writer that does nothing. Checkpoints of later steps are set aside before the
    block, and the other metric files are written after it.
    """
    run_dir, world, progress = trainer.run_dir, trainer.world, trainer.progress
    with ExitStack() as stack:
        stack.enter_context(closing(trainer.batches))
        if not world.is_main:
            yield MetricsWriter(None, ())
            return
        superseded = set_aside_after(trainer.checkpoints, progress.step)
        if superseded:
            log.warning("renamed the checkpoints of later steps to .superseded-STEP-N: steps %s", superseded)
        resume_history(trainer)
        if trainer.source is not None:
            write_atomically(run_dir / CONTINUED, json.dumps(trainer.source, indent=2).encode() + b"\n")
        stack.callback(write_metric_files, run_dir)
        writer = stack.enter_context(closing(JsonlWriter(run_dir / METRICS)))
        trackers = start_trackers(trainer)
        stack.callback(close_trackers, trackers)
        yield MetricsWriter(writer, trackers)


def start_trackers(trainer: Trainer) -> Sequence[BackgroundTracker]:
    """Start the configured experiment trackers. Raises `ProjectError` TRK001 without its package."""
    config, run_dir, first_step = trainer.config, trainer.run_dir, trainer.progress.first_open_step
    names = requested_trackers(config.trackers, with_wandb=config.wandb.enabled)
    if not names:
        return ()
    identity = run_identity(run_dir, first_step)
    run = TrackedRun(run_dir=run_dir, identity=identity, first_step=first_step, settings=to_dict(config))
    return open_trackers(names, run)


def peak_flops(trainer: Trainer) -> float | None:
    """Return the peak FLOP/s of all devices at the run's precision, from data sheets; None if unknown."""
    world = trainer.world
    if not world.is_on_gpu:
        return None
    try:
        device = assumptions_for(torch.cuda.get_device_name(world.device), None, mfu=1.0)
    except ProjectError:
        return None
    peak: float = peak_at_precision(trainer.config, device) * world.size
    return peak
