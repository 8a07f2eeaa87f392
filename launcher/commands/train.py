"""`train`: preflight, run directory, supervised training, summary."""

from __future__ import annotations

import os
import shlex
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.commands.launch_text import moved_aside_message, opening_text
from launcher.commands.selection import Selection, hide_gpus_from_cpu_run
from launcher.preflight import kept_receipts
from launcher.preflight.examination import examine, judge_dry_run
from launcher.preflight.hub_weights import require_downloaded
from launcher.preflight.levels import default_levels
from launcher.preflight.preflight_view import preflight_text
from launcher.preflight.receipts import (
    Examination,
    read_measurements,
    read_receipt_for_run,
    require_unchanged,
    require_valid,
)
from launcher.preflight.rehearsal_inputs import rehearsal_inputs
from launcher.process import trainer_process
from launcher.process.signal_forwarding import Forwarder, StoppedEarlyError, forward_signals
from launcher.process.trainer_process import Topology, trainer_command
from launcher.process.waiting_child import WaitingChild, start_waiting_child
from launcher.report.formats import print_report
from launcher.report.formats.text import render as findings_text
from launcher.run.launch_context import Launch, find_deadlines
from launcher.run.launch_records import RUN_FILES, move_aside, write_run
from launcher.run.live_view import LiveView, make_view
from launcher.run.next_command import resume_command
from launcher.run.stages import Stages, require_stages
from launcher.run.summary import Summary, summarize_finished_run, summary_text
from launcher.run.supervision import supervise
from launcher.run.worker_nodes import (
    require_free_port,
    require_rendezvous,
    resolve_node_rank,
    wait_for_first_node,
    withdraw_receipt,
)
from launcher.rundir.changed_text import changed_files
from launcher.rundir.directory import (
    CreatedMeanwhileError,
    continues_run,
    create_run_directory,
    is_finished,
    lock_run_directory,
    refuse_halted_run,
    refuse_special_files,
    require_newest,
    run_directory,
    take_over,
)
from launcher.rundir.live_state import LiveReader
from launcher.rundir.records import FIRST_STEP, NUM_RANKS
from launcher.terminal import console
from launcher.terminal.nonblocking_output import nonblocking_streams
from launcher.terminal.values import result_json
from neobert.clock import seconds_since_boot
from neobert.config.overrides import format_text_override
from neobert.errors import EXIT_OK, EXIT_PREEMPTED, ProjectError
from neobert.families.table import initial_weights
from neobert.plurals import listed
from neobert.printable import printable
from neobert.receipt import Receipt
from neobert.runfiles.run_dir import CHECKPOINTS, LOGS, RESOLVED
from profiles.registry import ResolvedRun
from validators.finding import Level

# Not in the run directory: that may be on a full disk, which is one of the errors to report.
ERROR = "error.json"
DRY = "checked config and run directory; `neobert-launch preflight` also checks machine, GPUs and data"


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """Arguments of `train`.

    Attributes:
        topology: rendezvous options, as torchrun names them.
        receipt: receipt of an earlier preflight, whose expensive checks are reused.
        unguarded: reason for launching even if checks fail.
        stages: steps at which the metrics are checked; a failed check stops the run.
        quiet: print warnings, errors and the summary only.
        verbose: print all checks and values, with reasons.
        keeps_checkpoints: False if the caller deletes the checkpoints of a finished run; the summary then
            does not print their paths.
    """

    selection: Selection
    topology: Topology
    dry_run: bool
    strict: bool
    receipt: Path | None = None
    unguarded: str = ""
    stages: tuple[int, ...] = ()
    quiet: bool = False
    verbose: bool = False
    keeps_checkpoints: bool = True


@dataclass(frozen=True, slots=True)
class NodeLaunch:
    """One launch on this node: the request, and the values derived from it.

    Attributes:
        folder: the run directory.
        begun_s: start of the command, in seconds since boot.
    """

    request: TrainRequest
    resolved: ResolvedRun
    topology: Topology
    folder: Path
    output_format: str
    begun_s: float
    forwarder: Forwarder


def launch_overrides(resume: str | None, nproc_per_node: int | None, nnodes: int | None) -> list[str]:
    """Return the overrides for --resume, --nproc-per-node and --nnodes; none for options that are None."""
    counts = {"distributed.nproc_per_node": nproc_per_node, "distributed.nnodes": nnodes}
    given = [f"{key}={value}" for key, value in counts.items() if value is not None]
    return (
        given if resume is None else [format_text_override("trainer.resume_from_checkpoint", resume), *given]
    )


def run(request: TrainRequest, output_format: str) -> int:
    """Launch one run and supervise it to its end; return the exit code.

    A finished run is only summarized, and `request.dry_run` only checks. Raises `ProjectError` for a run
    that cannot be launched, or that a signal stopped before its start.
    """
    try:
        with forward_signals() as forwarder:
            return _run(request, output_format, seconds_since_boot(), forwarder)
    except StoppedEarlyError:
        again = resume_command(has_checkpoint=False)
        message = "stopped before the trainer was started: nothing is lost"
        raise ProjectError("stopped-early", message, again, exit_code=EXIT_PREEMPTED) from None


def _run(request: TrainRequest, output_format: str, begun_s: float, forwarder: Forwarder) -> int:
    resolved = request.selection.require()
    require_stages(request.stages, resolved.config.trainer.max_steps)
    hide_gpus_from_cpu_run(resolved)
    distributed = resolved.config.distributed
    topology = resolve_node_rank(
        replace(request.topology, nproc_per_node=distributed.nproc_per_node, nnodes=distributed.nnodes)
    )
    require_rendezvous(topology)
    folder = run_directory(resolved)
    node = NodeLaunch(request, resolved, topology, folder, output_format, begun_s, forwarder)
    if is_finished(resolved, folder):
        return _print_finished_run(node)
    if request.dry_run:
        return _dry_run(node)
    require_downloaded(resolved.config)
    return _launch_worker_node(node) if topology.node_rank else _launch_first_node(node)


def _print_finished_run(node: NodeLaunch) -> int:
    if node.output_format == "text":
        console.write("this run is already finished")
    if changed := changed_files(node.resolved.config, node.folder):
        names = printable(listed(changed))
        way = "to train on it, set trainer.output_dir to another folder"
        console.log(f"note: the text has changed since this run was trained on it ({names}): {way}")
    return _print_summary(summarize_finished_run(node.folder), node)


def _launch_first_node(node: NodeLaunch) -> int:
    """Launch on node 0; retry once if another launch created the run directory during the checks."""
    try:
        return _launch_first_node_once(node)
    except CreatedMeanwhileError:
        return _launch_first_node_once(node)


def _launch_first_node_once(node: NodeLaunch) -> int:
    """Lock the run directory, check the run, write its files, and train."""
    request, resolved, folder = node.request, node.resolved, node.folder
    with ExitStack() as holds:
        held = holds.enter_context(lock_run_directory(folder)) if folder.is_dir() else None
        if held is not None and is_finished(resolved, folder):  # while this launch waited for the lock
            return _print_finished_run(node)
        refuse_halted_run(folder)
        refuse_special_files(folder)
        if held is not None and node.topology.nnodes > 1:
            withdraw_receipt(folder, resolved.digest, request.receipt)
        require_free_port(node.topology)
        staging = Path(holds.enter_context(tempfile.TemporaryDirectory(prefix="neobert-launch-")))
        child = None
        if not node.topology.needs_torchrun:
            packages = trainer_process.trainer_packages(resolved.config)
            child = holds.enter_context(start_waiting_child(trainer_process.TRAINER_MODULE, packages))
        examination = _run_checks(request, resolved, staging, child)
        if examination.report.exit_code != EXIT_OK and not request.unguarded:
            return _print_failed_preflight(examination, node.output_format, verbose=request.verbose)
        if held is None:
            held = holds.enter_context(create_run_directory(folder))
        moved = move_aside(folder, is_resumed=continues_run(resolved, folder, examination.facts.resume))
        if moved:
            console.log(moved_aside_message(resolved, folder, moved))
            held = holds.enter_context(create_run_directory(folder))
        first_step, has_weights = _resumed_step(examination), _starts_from_weights(resolved)
        stages = Stages(folder, request.stages, first_step, console.log, has_weights=has_weights)
        launch = replace(_make_launch(node, staging / ERROR, (held,)), stages=stages, waiting=child)
        require_newest(folder)
        entry = _manifest_entry(node, max(0, first_step))
        write_run(examination, request.selection.files, folder, staging, entry)
        launch = replace(launch, attempt=take_over(folder))
        if node.output_format == "text" and not request.quiet:
            console.write(opening_text(examination, folder, verbose=request.verbose))
        holds.enter_context(nonblocking_streams())
        watch = LiveReader(folder, first_step, resolved.config.trainer.max_steps)
        view = make_view(watch, node.output_format, is_quiet=request.quiet)
        return _print_summary(_supervise_with_view(launch, node.forwarder, view), node)


def _manifest_entry(node: NodeLaunch, first_step: int) -> dict[str, Any]:
    """Return the manifest entries about the launch: command, start time, first step and number of ranks."""
    return {
        "command": _trainer_command(node),
        "begun_boot_s": round(node.begun_s, 3),
        FIRST_STEP: first_step,
        NUM_RANKS: node.topology.nproc_per_node * node.topology.nnodes,
    }


def _run_checks(
    request: TrainRequest, resolved: ResolvedRun, staging: Path, trainer: WaitingChild | None
) -> Examination:
    """Run the preflight checks; an earlier receipt may replace expensive ones.

    The receipt is the one given with --receipt, or the one stored when the same run was rehearsed.
    """
    given = read_receipt_for_run(request.receipt, resolved) if request.receipt else None
    levels = default_levels(resolved)
    inputs = rehearsal_inputs(resolved) if Level.REHEARSAL in levels and not given else {}
    kept = kept_receipts.find_receipt(resolved, inputs)
    again = kept_receipts.REMEASURED if kept else frozenset[str]()

    def examine_with(receipt: Receipt | None, trainer: WaitingChild | None = trainer) -> Examination:
        return examine(
            resolved,
            levels,
            folder=staging,
            strict=request.strict,
            unguarded=request.unguarded,
            receipt=receipt,
            measured_again=again,
            earlier=read_measurements(receipt),
            trainer=trainer,
        )

    examination = examine_with(given or kept)
    if request.receipt and given:
        require_unchanged(given, examination, request.receipt)
    if kept and not kept_receipts.is_same_content(kept, examination):
        if trainer is not None:
            trainer.close()  # it has warmed up, and its memory would count as that of others
        examination = examine_with(None, None)
    kept_receipts.store_receipt(examination, inputs)
    return examination


def _launch_worker_node(node: NodeLaunch) -> int:
    """Launch on a worker node: check its devices, wait for node 0, and train.

    A receipt must be valid for the run, but describes the devices of another node, so this node is probed.
    """
    request, resolved = node.request, node.resolved
    receipt = read_receipt_for_run(request.receipt, resolved) if request.receipt else None
    if request.receipt and receipt:
        require_valid(receipt, resolved, request.receipt)
    examination = examine(
        resolved,
        (Level.STATIC, Level.GPU),
        folder=None,
        strict=request.strict,
        unguarded=request.unguarded,
        earlier=read_measurements(receipt),
    )
    if examination.report.exit_code != EXIT_OK and not request.unguarded:
        return _print_failed_preflight(examination, node.output_format, verbose=request.verbose)
    wait_for_first_node(node.folder, resolved.digest)
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as staging, nonblocking_streams():
        launch = _make_launch(node, Path(staging, ERROR))
        return _print_summary(supervise(launch, node.forwarder, lambda: None), node)


def _print_failed_preflight(examination: Examination, output_format: str, *, verbose: bool) -> int:
    if output_format == "text":
        console.write(preflight_text(examination, verbose=verbose))
        console.write("preflight failed: no run was started or written")
    else:
        print_report(examination.report, output_format)
    return examination.report.exit_code


def _make_launch(node: NodeLaunch, error_file: Path, held: tuple[int, ...] = ()) -> Launch:
    """Return the launch of this node.

    `held` are descriptors of the lock on the run directory; empty on a worker node. Time limits count from
    the start of the command, because the preflight may take minutes.
    """
    return Launch(
        command=_trainer_command(node),
        folder=node.folder,
        topology=node.topology,
        limits=node.resolved.config.watchdog,
        error_file=error_file,
        held=held,
        deadlines=find_deadlines(node.resolved, os.environ, node.begun_s),
        owns_run=bool(held),
    )


def _supervise_with_view(launch: Launch, forwarder: Forwarder, view: LiveView) -> Summary:
    def refresh() -> None:
        forwarder.print_new()
        view.refresh()
        if launch.stages is not None and launch.stages.check_reached_stages():
            console.log(printable(launch.stages.failure))
            forwarder.stop()

    try:
        return supervise(launch, forwarder, refresh)
    finally:
        view.close()


def _starts_from_weights(resolved: ResolvedRun) -> bool:
    """Return whether training starts from trained weights, with which the loss need not fall."""
    return initial_weights(resolved.config) is not None or resolved.config.trainer.continue_from is not None


def _resumed_step(examination: Examination) -> int:
    """Return the step of the verified checkpoint to resume from, or -1 if there is none."""
    resume = examination.facts.resume
    return resume.step if resume is not None and resume.is_verified else -1


def _print_summary(summary: Summary, node: NodeLaunch) -> int:
    if node.output_format == "json":
        console.write(result_json(summary.as_json()))
    else:
        console.write(summary_text(summary, keeps_checkpoints=node.request.keeps_checkpoints))
    return summary.exit_code


def _trainer_command(node: NodeLaunch) -> list[str]:
    return trainer_command(node.folder / RESOLVED, node.folder / LOGS, node.topology)


def _dry_run(node: NodeLaunch) -> int:
    """Run the checks that need no probes of the machine, and print the files and command of a launch."""
    refuse_halted_run(node.folder)
    refuse_special_files(node.folder)
    leads = not node.topology.node_rank
    report = judge_dry_run(node.resolved, node.folder, owns_run=leads, strict=node.request.strict)
    command = _trainer_command(node)
    would_write = [f"{node.folder}/{name}" for name in (*RUN_FILES, f"{CHECKPOINTS}/")]
    if node.output_format == "json":
        output: dict[str, Any] = {**report.as_json(), "command": command, "would_write": would_write}
        console.write(result_json(output))
    elif report.exit_code == EXIT_OK:
        lines = [
            "would write:",
            *(printable(f"  {name}") for name in would_write),
            "would run:",
            printable(f"  {shlex.join(command)}"),
        ]
        console.write("\n".join([*lines, findings_text(report), DRY]))
    else:
        console.write(f"{findings_text(report)}\ntrain would reject this run; no run was written")
    return report.exit_code
