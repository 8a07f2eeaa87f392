"""`train`: check, write the run directory, train in a child process, say how it ended."""

from __future__ import annotations

import os
import shlex
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.commands.devices import keep_to_its_device
from launcher.commands.selection import Selection
from launcher.preflight.dry_run import judge_dry_run
from launcher.preflight.examination import examine
from launcher.preflight.examined_run import Examination
from launcher.preflight.levels import default_levels
from launcher.preflight.preflight_view import preflight_text
from launcher.preflight.receipts import measured_in, read_for, require_standing, require_unchanged
from launcher.process.signal_forwarding import Forwarder, StoppedEarlyError, forwarding
from launcher.process.trainer_process import Topology, trainer_command
from launcher.report.formats import deliver
from launcher.report.formats.json import to_json
from launcher.report.formats.text import render as findings_text
from launcher.run.launch_context import Launch
from launcher.run.launch_records import WRITTEN, make_room, write_run
from launcher.run.live_view import View, make_view
from launcher.run.stages import Stages, require_stages
from launcher.run.summary import Ending, already_finished, same_again, summary_text
from launcher.run.supervision import supervise
from launcher.run.time_limit import deadlines_of
from launcher.run.worker_nodes import (
    require_free_port,
    require_meeting_place,
    wait_for_first_node,
    with_node_rank,
    withdraw_receipt,
)
from launcher.rundir.directory import LOGS, claimed, created, refuse_halted, run_directory
from launcher.rundir.live_state import Watch
from launcher.rundir.resume_state import NEVER, goes_on, is_finished
from launcher.terminal import console
from launcher.terminal.nonblocking_output import never_blocking
from neobert.clock import since_boot_s
from neobert.config.overrides import text_override
from neobert.errors import EXIT_OK, EXIT_PREEMPTED, ProjectError
from neobert.families.table import initial_weights
from neobert.printable import printable
from neobert.runfiles.location import CHECKPOINTS, RESOLVED
from profiles.registry import ResolvedRun
from validators.finding import Level

# Beside the run it would be lost when the run's disk is full, which is one of the errors it has to tell.
ERROR = "error.json"
DRY = "checked: config and run directory; `neobert-launch preflight` checks machine, GPUs and data too"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for.

    Attributes:
        meeting: how nodes find each other, in torchrun's words.
        receipt: of an earlier preflight, whose dear checks count on.
        unguarded: why the run may start whatever the checks say.
        stages: steps at which the run is judged.
    """

    selection: Selection
    meeting: Topology
    dry_run: bool
    strict: bool
    receipt: Path | None = None
    unguarded: str = ""
    stages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """One launch on this node: what was asked for, and what follows from that.

    Attributes:
        folder: the run directory.
        begun_s: when the command was given, in seconds since boot.
    """

    asked: Asked
    resolved: ResolvedRun
    topology: Topology
    folder: Path
    output_format: str
    begun_s: float
    forwarder: Forwarder


def as_overrides(resume: str | None, nproc_per_node: int | None, nnodes: int | None) -> list[str]:
    """Flags that stand for keys of the config, so that the plan and the digest see them."""
    counts = {"distributed.nproc_per_node": nproc_per_node, "distributed.nnodes": nnodes}
    given = [f"{key}={value}" for key, value in counts.items() if value is not None]
    return given if resume is None else [text_override("trainer.resume_from_checkpoint", resume), *given]


def run(asked: Asked, output_format: str) -> int:
    """Launch one run and stay with it to its end."""
    try:
        with forwarding() as forwarder:
            return _run(asked, output_format, since_boot_s(), forwarder)
    except StoppedEarlyError:
        again = same_again(has_checkpoint=False)
        message = "asked to stop before the trainer was started: nothing is lost"
        raise ProjectError("stopped-early", message, again, exit_code=EXIT_PREEMPTED) from None


def _run(asked: Asked, output_format: str, begun_s: float, forwarder: Forwarder) -> int:
    resolved = asked.selection.require()
    require_stages(asked.stages, resolved.config.trainer.max_steps)
    keep_to_its_device(resolved)
    topology = _topology(resolved, asked.meeting)
    folder = run_directory(resolved)
    order = Order(asked, resolved, topology, folder, output_format, begun_s, forwarder)
    if is_finished(resolved, folder):
        if output_format == "text":
            console.write("this run is finished: nothing is left to do")
        return _deliver(already_finished(folder), output_format)
    if asked.dry_run:
        return _dry_run(order)
    return _join(order) if topology.node_rank else _lead(order)


def _lead(order: Order) -> int:
    """Keep the run directory: check the run, write down what it needs, and train."""
    asked, resolved, folder = order.asked, order.resolved, order.folder
    with ExitStack() as holds:
        held = holds.enter_context(claimed(folder)) if folder.is_dir() else None
        refuse_halted(folder)
        if held is not None and order.topology.nnodes > 1:
            withdraw_receipt(folder, resolved.digest, asked.receipt)
        require_free_port(order.topology)
        staging = Path(holds.enter_context(tempfile.TemporaryDirectory(prefix="neobert-launch-")))
        examination = _examine(asked, resolved, staging)
        if examination.report.exit_code != EXIT_OK and not asked.unguarded:
            return _refuse(examination, order.output_format)
        if held is None:
            held = holds.enter_context(created(folder))
        moved = make_room(folder, is_resumed=goes_on(resolved, folder, examination.facts.resume))
        if moved:
            console.tell(_moved_aside(resolved, folder, moved))
            held = holds.enter_context(created(folder))
        has_weights = initial_weights(resolved.config) is not None
        stages = Stages(folder, asked.stages, _first_step(examination), console.tell, has_weights=has_weights)
        launch = replace(_launch(order, staging / ERROR, (held,)), stages=stages)
        write_run(examination, asked.selection.files, folder, staging, {"command": launch.command})
        if order.output_format == "text":
            console.write(_opening(examination, folder))
        holds.enter_context(never_blocking())
        watch = Watch(folder, _first_step(examination), resolved.config.trainer.max_steps)
        view = make_view(watch, order.output_format)
        return _deliver(_follow(launch, order.forwarder, view), order.output_format)


def _topology(resolved: ResolvedRun, meeting: Topology) -> Topology:
    distributed = resolved.config.distributed
    topology = with_node_rank(
        replace(meeting, nproc_per_node=distributed.nproc_per_node, nnodes=distributed.nnodes)
    )
    require_meeting_place(topology)
    return topology


def _examine(asked: Asked, resolved: ResolvedRun, staging: Path) -> Examination:
    """Judge the run as things are now; an earlier receipt may answer for what is dear to find out again."""
    receipt = read_for(asked.receipt, resolved) if asked.receipt else None
    examination = examine(
        resolved,
        default_levels(resolved),
        folder=staging,
        strict=asked.strict,
        unguarded=asked.unguarded,
        receipt=receipt,
        earlier=measured_in(receipt),
    )
    if asked.receipt and receipt:
        require_unchanged(receipt, examination, asked.receipt)
    return examination


def _join(order: Order) -> int:
    """Take part in a run whose directory the first node keeps: check the devices here, then follow.

    A receipt has to cover the run. What it says of devices it says of another node's, so these are probed.
    """
    asked, resolved = order.asked, order.resolved
    receipt = read_for(asked.receipt, resolved) if asked.receipt else None
    if asked.receipt and receipt:
        require_standing(receipt, resolved, asked.receipt)
    examination = examine(
        resolved,
        (Level.STATIC, Level.GPU),
        folder=None,
        strict=asked.strict,
        unguarded=asked.unguarded,
        earlier=measured_in(receipt),
    )
    if examination.report.exit_code != EXIT_OK and not asked.unguarded:
        return _refuse(examination, order.output_format)
    wait_for_first_node(order.folder, resolved.digest)
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as staging, never_blocking():
        launch = _launch(order, Path(staging, ERROR))
        return _deliver(supervise(launch, order.forwarder, lambda: None), order.output_format)


def _refuse(examination: Examination, output_format: str) -> int:
    if output_format == "text":
        console.write(preflight_text(examination, verbose=False))
        console.write("the launch is refused: nothing was started, nothing was written")
    else:
        deliver(examination.report, output_format)
    return examination.report.exit_code


def _opening(examination: Examination, folder: Path) -> str:
    lines = [preflight_text(examination, verbose=False), printable(f"run directory: {folder}")]
    if examination.unguarded:
        lines.append(printable(f"unguarded: {examination.unguarded}"))
    return "\n".join(lines)


def _moved_aside(resolved: ResolvedRun, folder: Path, moved: Path) -> str:
    """Say where another run's files went; `--resume auto` has found no checkpoint to resume from, then."""
    reason = ""
    if resolved.config.trainer.resume_from_checkpoint != NEVER:
        reason = "no checkpoint to resume from and another config: starting at step 0; "
    return printable(f"{folder} held another run: {reason}its files were moved to {moved}")


def _launch(order: Order, error_file: Path, held: tuple[int, ...] = ()) -> Launch:
    """What is started; a descriptor that is held stands for a run directory that is ours.

    A limit of time counts from when the command was given: the checks before it take minutes of it.
    """
    return Launch(
        command=_command(order),
        folder=order.folder,
        topology=order.topology,
        limits=order.resolved.config.watchdog,
        error_file=error_file,
        held=held,
        deadlines=deadlines_of(order.resolved, os.environ, order.begun_s),
        owns_run=bool(held),
    )


def _follow(launch: Launch, forwarder: Forwarder, view: View) -> Ending:
    """Stay with the run, and leave the terminal as it was."""

    def tell() -> None:
        forwarder.tell_new()
        view.refresh()
        if launch.stages is not None and launch.stages.look():
            console.tell(printable(launch.stages.failure))
            forwarder.stop()

    try:
        return supervise(launch, forwarder, tell)
    finally:
        view.close()


def _first_step(examination: Examination) -> int:
    """Metrics up to the checkpoint that the run goes on from were shown by an earlier launch."""
    resume = examination.facts.resume
    return resume.step if resume is not None and resume.is_verified else -1


def _deliver(ending: Ending, output_format: str) -> int:
    console.write(to_json(ending.as_json()) if output_format == "json" else summary_text(ending))
    return ending.exit_code


def _command(order: Order) -> list[str]:
    return trainer_command(order.folder / RESOLVED, order.folder / LOGS, order.topology)


def _dry_run(order: Order) -> int:
    """Judge what needs no look at the machine; nothing is written or started."""
    refuse_halted(order.folder)
    leads = not order.topology.node_rank
    report = judge_dry_run(order.resolved, order.folder, leads=leads, strict=order.asked.strict)
    command = _command(order)
    would_write = [f"{order.folder}/{name}" for name in (*WRITTEN, f"{CHECKPOINTS}/")]
    if order.output_format == "json":
        told: dict[str, Any] = {**report.as_json(), "command": command, "would_write": would_write}
        console.write(to_json(told))
    elif report.exit_code == EXIT_OK:
        lines = [
            "would write:",
            *(printable(f"  {name}") for name in would_write),
            "would run:",
            printable(f"  {shlex.join(command)}"),
        ]
        console.write("\n".join([*lines, findings_text(report), DRY]))
    else:
        console.write(f"{findings_text(report)}\ntrain would refuse this run: nothing would be written")
    return report.exit_code
