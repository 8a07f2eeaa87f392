"""Supervision of a run: start sessions, detect hangs, stop them, restart if that can help."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.io.files import write_json
from launcher.process.process_tree import dump_stacks, end, end_orphans, workers_of
from launcher.process.signal_forwarding import Forwarder
from launcher.process.trainer_process import AGAIN, start, wait
from launcher.run.launch_context import Launch, Session, environment_of, lost_rank, nearest
from launcher.run.launch_records import record_restart, record_trainer
from launcher.run.restart_policy import (
    CPU_LIMIT,
    FINAL_CODES,
    Failure,
    Restarts,
    Verdict,
    children_cpu_s,
    of_error,
    of_lost,
    of_stall,
    used_up,
)
from launcher.run.summary import Summary, conclude, read_error, saved_step
from launcher.rundir.directory import LOGS
from launcher.rundir.records import Record, read_outcome, stamp
from launcher.rundir.stalls import AwakeClock, Stall, Watchdog
from launcher.terminal import console
from neobert.errors import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_TRAINING_FAILED,
    ProjectError,
)
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.checkpoint.folders import latest
from neobert.runfiles.run_dir import CHECKPOINTS, OUTCOME, RESOLVED

LOOKS_A_BEAT = 4
UNKILLABLE_S = 10.0
STUCK = "one of its processes hangs in the kernel, cannot be killed, and holds its device"


class StalledError(Exception):
    """Hang of a run, raised where the launcher waits for its end."""

    def __init__(self, stall: Stall) -> None:
        super().__init__(str(stall))
        self.stall = stall


def supervise(launch: Launch, forwarder: Forwarder, on_tick: Callable[[], None]) -> Summary:
    """Run sessions until one is the last."""
    most = launch.limits.max_restarts if launch.owns_run and launch.topology.nnodes == 1 else 0
    restarts = Restarts(most)
    if launch.owns_run and stop_orphans(launch):
        raise _blocked_by_earlier_session(launch)
    # From here on signals belong to the trainer, including those that arrive between two sessions.
    forwarder.take_charge(has_agent=launch.has_agent)
    while True:
        session = run_session(launch, forwarder, on_tick, is_again=bool(restarts.failures))
        verdict_of_stage = failed_stage(launch)
        is_over = verdict_of_stage is not None or _was_stopped(forwarder)
        failure = None if is_over else failure_of(launch, session)
        if failure is None:
            final_verdict = verdict_of_stage or too_late(launch, forwarder)
            return conclude_session(launch, session, forwarder, final_verdict)
        verdict = restarts.judge(failure, saved_step(launch.location))
        if reason := why_no_restart(launch, session):
            verdict = Verdict(False, reason=reason)
        if not verdict.restarts:
            return give_up(launch, session, forwarder, failure, verdict)
        restart(launch, failure, restarts)


def why_no_restart(launch: Launch, session: Session) -> str:
    """Return why another session cannot help; empty if it may."""
    if session.num_stuck:
        return STUCK
    if launch.is_displaced:
        return f"not restarting: {displacement(launch)}"
    return CPU_LIMIT if _has_used_up_cpu(launch, session) else ""


def _has_used_up_cpu(launch: Launch, session: Session) -> bool:
    lost = lost_rank(session, has_agent=launch.has_agent)
    return lost is not None and used_up(lost[1], session.cpu_s, len(launch.topology.ranks))


def failed_stage(launch: Launch) -> dict[str, Any] | None:
    """Write the verdict on a run that failed one of its stages, with any end of its session."""
    if launch.stages is None:
        return None
    launch.stages.look()
    if not launch.stages.failure:
        return None
    verdict = read_outcome(launch.location) | {
        "status": "failed",
        "exit_code": EXIT_DO_NOT_REQUEUE,
        "message": launch.stages.failure,
    }
    _write_verdict(launch, verdict)
    return verdict


def displacement(launch: Launch) -> str:
    """Describe what happened to a run directory that is not at its path."""
    if launch.location == launch.folder:
        return f"{launch.folder} was deleted, or moved to another file system"
    return f"{launch.folder} was moved to {launch.location}; move it back to resume"


def too_late(launch: Launch, forwarder: Forwarder) -> dict[str, Any] | None:
    """Write the verdict on a run that stopped at a deadline after which it must not be requeued."""
    outcome = read_outcome(launch.location)
    is_by_the_clock = outcome.get("exit_code") == EXIT_PREEMPTED and not _was_stopped(forwarder)
    deadline = nearest(launch.deadlines)
    if not (is_by_the_clock and deadline and deadline.verdict and launch.owns_run):
        return None
    verdict = outcome | {
        "status": "failed",
        "exit_code": EXIT_DO_NOT_REQUEUE,
        "message": deadline.verdict,
    }
    _write_verdict(launch, verdict)
    return verdict


def run_session(
    launch: Launch, forwarder: Forwarder, on_tick: Callable[[], None], *, is_again: bool
) -> Session:
    """Start the trainer and watch it until it ends or has to be stopped."""
    launch.error_file.unlink(missing_ok=True)
    if is_again:
        (launch.location / OUTCOME).unlink(missing_ok=True)  # it belongs to the previous session
    # Heartbeats of earlier sessions stay in the files: only newer sequence numbers count for this session.
    before, first_step = launch.beats(), saved_step(launch.location)
    earlier_outcome = None if launch.owns_run else stamp(launch.location / OUTCOME)
    cpu_before_s = children_cpu_s()
    log_start = launch.log.stat().st_size if launch.log.exists() else 0
    command = [*launch.command, AGAIN] if is_again else launch.command
    child = start(
        command,
        launch.log,
        launch.error_file,
        launch.held,
        launch.topology.nproc_per_node,
        environment_of(launch.deadlines),
    )
    forwarder.adopt(child)
    if launch.owns_run:
        with _tolerating_full_disk("the trainer's process in manifest.json"):
            record_trainer(launch.location, child.pid)
    code, stall = watch(launch, child, on_tick, before)
    num_stuck = stop_orphans(launch) + (child.poll() is None)
    has_begun = any(beat.get("seq") != before[rank].get("seq") for rank, beat in launch.beats().items())
    output = _read_from(launch.log, log_start) if launch.has_agent else ""
    cpu_s = children_cpu_s() - cpu_before_s
    return Session(code, stall, has_begun, first_step, output, num_stuck, earlier_outcome, cpu_s)


def _read_from(log: Path, offset: int) -> str:
    """Read a log from a byte offset; empty if it was deleted with its run directory."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", errors="replace")
    return ""


def stop_orphans(launch: Launch) -> int:
    """Stop unsupervised ranks so that no two sessions write to one run. Returns how many survived."""
    count, num_stuck = end_orphans(launch.folder / RESOLVED, launch.limits.grace_s)
    if count:
        console.tell(f"stopped {counted(count, 'rank')} that outlived the process that started them")
    return num_stuck


def _blocked_by_earlier_session(launch: Launch) -> ProjectError:
    return ProjectError(
        code="run-in-progress",
        message=f"an earlier session still uses this directory: {STUCK}",
        hint="use another machine, or reboot this one",
        place=str(launch.folder),
    )


def watch(
    launch: Launch, child: subprocess.Popen[bytes], on_tick: Callable[[], None], before: Mapping[int, Record]
) -> tuple[int, Stall | None]:
    """Wait for a child to end. Returns its exit code, and the stall for which it was stopped.

    Args:
        before: newest heartbeats from before the start.
    """
    clock = AwakeClock()
    watchdog = Watchdog(launch.limits, before, clock())
    pause_s, looked_at_s = launch.limits.heartbeat_interval_s / LOOKS_A_BEAT, clock()
    is_displaced = False

    def look() -> None:
        nonlocal looked_at_s, is_displaced
        on_tick()
        if launch.is_displaced and not is_displaced:
            is_displaced = True
            console.tell(printable(f"warning: {displacement(launch)}; the run stops after this step"))
        now_s = clock()
        # Several looks per heartbeat interval, so that a hang is reported soon after its limit.
        if now_s - looked_at_s >= pause_s:
            looked_at_s = now_s
            stall = watchdog.look(launch.beats(), now_s)
            if stall is not None:
                raise StalledError(stall)

    try:
        return wait(child, look), None
    except StalledError as stalled:
        stop_stalled(launch, child, stalled.stall)
        return _code_of(child), stalled.stall


def _code_of(child: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a killed child, without waiting for one that hangs in the kernel."""
    try:
        return child.wait(UNKILLABLE_S)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL


def stop_stalled(launch: Launch, child: subprocess.Popen[bytes], stall: Stall) -> None:
    """Write the stacks of all ranks, then stop them."""
    workers = workers_of(child, launch.has_agent)
    note = f"the stacks of all ranks are in {launch.location / LOGS}/rank_*.stacks"
    try:
        dump_stacks(workers, launch.location, str(stall))
    except OSError as error:  # a full or missing disk may be the cause of the hang
        note = f"could not write stacks: {error}"
    console.tell(printable(f"{stall}; {note}"))
    end(child, workers, launch.limits.grace_s)


def failure_of(launch: Launch, session: Session) -> Failure | None:
    """Return the failure of a session that may be restarted; None if its end is the end of the run."""
    outcome = outcome_of(launch, session)
    if outcome.get("exit_code") == EXIT_OK:
        return None
    step = _trained_step(launch)
    if session.stall is not None:
        return of_stall(session.stall, step)
    if (lost := lost_rank(session, has_agent=launch.has_agent)) is not None:
        return of_lost(*lost, step, has_used_up_cpu=_has_used_up_cpu(launch, session))
    # A session that completed no step would fail in the same way again.
    if outcome.get("exit_code") != EXIT_TRAINING_FAILED or step <= session.first_step:
        return None
    reported = ProjectError("", str(outcome.get("message", "")), exit_code=EXIT_TRAINING_FAILED)
    error = read_error(launch.error_file) or reported
    return None if error.code in FINAL_CODES else of_error(error, int(outcome.get("step") or step))


def outcome_of(launch: Launch, session: Session) -> Record:
    """Return the session's outcome; empty if the file still holds that of an earlier launch."""
    is_earlier = session.earlier_outcome and session.earlier_outcome == stamp(launch.location / OUTCOME)
    return {} if is_earlier else read_outcome(launch.location)


def restart(launch: Launch, failure: Failure, restarts: Restarts) -> None:
    """Report and record a restart, with its reason and the checkpoint to resume from."""
    checkpoint = latest(launch.location / CHECKPOINTS)
    source = f"checkpoint {checkpoint.name}" if checkpoint else "the start"
    entry = {"why": failure.message, "step": failure.step, "kind": failure.kind, "from": source}
    with _tolerating_full_disk("the restart in manifest.json"):
        record_restart(launch.location, entry)
    count = f"restart {restarts.in_a_row} of {restarts.most}"
    console.tell(printable(f"{failure.message}; restarting from {source} ({count})"))


def conclude_session(
    launch: Launch, session: Session, forwarder: Forwarder, verdict: Mapping[str, Any] | None = None
) -> Summary:
    """Summarize the last session from its files, or from the launcher's verdict."""
    ending = conclude(
        launch.location,
        session.trainer_code,
        forwarder.seen,
        launch.error_file,
        has_begun=session.has_begun,
        verdict=outcome_of(launch, session) if verdict is None else verdict,
    )
    if ending.restarts and launch.owns_run:
        _amend_outcome(launch, ending)
    if launch.location != launch.folder and ending.exit_code != EXIT_OK:
        back = shlex.join(["mv", str(launch.location), str(launch.folder)])
        return replace(ending, next_command=f"{back} && {ending.next_command}")
    return ending


def give_up(
    launch: Launch, session: Session, forwarder: Forwarder, failure: Failure, verdict: Verdict
) -> Summary:
    """Report why the run is not restarted, if the trainer could not report it."""
    if not launch.owns_run:
        return conclude_session(launch, session, forwarder)
    outcome = {
        "status": "failed",
        "exit_code": verdict.exit_code,
        "step": failure.step,
        "message": "; ".join(part for part in (failure.message, verdict.reason) if part),
    }
    _write_verdict(launch, outcome)
    # The summary prefers the error file, which does not hold the launcher's verdict.
    if failure.kind != "reported" or verdict.reason:
        launch.error_file.unlink(missing_ok=True)
    return conclude_session(launch, session, forwarder, outcome)


def _write_verdict(launch: Launch, outcome: Mapping[str, Any]) -> None:
    """Write outcome.json; a full disk here is logged, not fatal."""
    with _tolerating_full_disk("the verdict in outcome.json"):
        write_json(launch.location / OUTCOME, outcome)


def _amend_outcome(launch: Launch, ending: Summary) -> None:
    outcome = read_outcome(launch.location)
    known = outcome or {"status": ending.status, "exit_code": ending.exit_code, "step": ending.step}
    with _tolerating_full_disk("the restarts in outcome.json"):
        write_json(launch.location / OUTCOME, {**known, "restarts": ending.restarts})


@contextmanager
def _tolerating_full_disk(name: str) -> Iterator[None]:
    """Warn if a record could not be written: that must not end a run or change its exit code."""
    try:
        yield
    except ProjectError as error:
        console.tell(printable(f"warning: could not write {name}: {error.place} {error.message}"))


def _was_stopped(forwarder: Forwarder) -> bool:
    return bool(forwarder.seen)


def _trained_step(launch: Launch) -> int:
    return max(int(beat.get("step") or 0) for beat in launch.beats().values())
