"""Supervision of a run: sessions, restarts and outcome."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.io.files import write_json
from launcher.process.signal_forwarding import Forwarder
from launcher.process.termination import signal_name
from launcher.run.launch_context import Launch, earliest_deadline
from launcher.run.launch_records import record_restart
from launcher.run.session import Session, lost_rank, run_session, stop_orphans, tolerate_full_disk
from launcher.run.summary import Summary, saved_step, summarize_run
from launcher.rundir.records import Record, file_stamp, read_outcome
from launcher.rundir.stalls import Stall
from launcher.terminal import console
from neobert.errors import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_TRAINING_FAILED,
    ProjectError,
    read_error_file,
)
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.attempt import replaced_error
from neobert.runfiles.phases import COLLECTIVE, DATA_WAIT, SAVE, START
from neobert.runfiles.run_dir import CODE as MISSING
from neobert.runfiles.run_dir import OUTCOME

STUCK = "one of its processes hangs in the kernel, cannot be killed, and holds its device"

# Causes outside the run that may be transient: a disk, a network, host memory.
TRANSIENT_PHASES = (START, DATA_WAIT, COLLECTIVE, SAVE)
TRANSIENT_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
TRANSIENT_CODES = ("DAT010",)
# No restart helps: space has to be freed first, or each session degrades again from a newer checkpoint, or a
# file of a plug-in was edited.
FINAL_CODES = ("CKP004", "DGR001", "DGR002", "PLG003", MISSING)


def supervise(launch: Launch, forwarder: Forwarder, on_tick: Callable[[], None]) -> Summary:
    """Run sessions until the run ends or a restart cannot help; return its summary.

    Raises ProjectError if ranks of an earlier session cannot be killed.
    """
    most = launch.limits.max_restarts if launch.owns_run and launch.topology.nnodes == 1 else 0
    restarts = RestartPolicy(most)
    if launch.owns_run and stop_orphans(launch):
        raise ProjectError(
            code="run-in-progress",
            message=f"an earlier session still uses this directory: {STUCK}",
            hint="use another machine, or reboot this one",
            place=str(launch.folder),
        )
    # From here on signals belong to the trainer, including those that arrive between two sessions.
    forwarder.keep_for_trainer(has_agent=launch.has_agent)
    while True:
        session = run_session(launch, forwarder, on_tick, is_restart=bool(restarts.failures))
        if launch.is_replaced:
            return summarize_replaced_session(launch, session, forwarder)
        verdict_of_stage = failed_stage_outcome(launch)
        is_over = verdict_of_stage is not None or _was_stopped(forwarder)
        failure = None if is_over else find_failure(launch, session)
        if failure is None:
            final_verdict = verdict_of_stage or deadline_outcome(launch, forwarder)
            return summarize_session(launch, session, forwarder, final_verdict)
        verdict = restarts.judge(failure, saved_step(launch.folder))
        if reason := why_no_restart(launch, session):
            verdict = RestartDecision(restarts=False, reason=reason)
        if not verdict.restarts:
            return summarize_failed_run(launch, session, forwarder, failure, verdict)
        record_and_report_restart(launch, failure, restarts)


def summarize_replaced_session(launch: Launch, session: Session, forwarder: Forwarder) -> Summary:
    """Summarize a session that a later launch has replaced; the run directory is left to that launch."""
    error = replaced_error(launch.folder)
    outcome = {"status": "failed", "exit_code": error.exit_code, "message": error.message, "hint": error.hint}
    return summarize_run(launch.folder, session.trainer_code, forwarder.seen, None, verdict=outcome)


def why_no_restart(launch: Launch, session: Session) -> str:
    """Return the reason that a restart cannot help; empty if a restart may help."""
    if session.num_stuck:
        return STUCK
    return "" if launch.folder.is_dir() else f"not restarting: {launch.folder} was moved or deleted"


def failed_stage_outcome(launch: Launch) -> dict[str, Any] | None:
    """Write and return the outcome of a run that failed a stage, or return None if no stage failed.

    It replaces the outcome that the session reported.
    """
    if launch.stages is None:
        return None
    launch.stages.check_reached_stages()
    if not launch.stages.failure:
        return None
    verdict = read_outcome(launch.folder) | {
        "status": "failed",
        "exit_code": EXIT_DO_NOT_REQUEUE,
        "message": launch.stages.failure,
    }
    _write_outcome(launch, verdict)
    return verdict


def deadline_outcome(launch: Launch, forwarder: Forwarder) -> dict[str, Any] | None:
    """Write and return the outcome of a run that a deadline stopped and that must not be requeued.

    Returns None for any other run.
    """
    outcome = read_outcome(launch.folder)
    is_by_the_clock = outcome.get("exit_code") == EXIT_PREEMPTED and not _was_stopped(forwarder)
    deadline = earliest_deadline(launch.deadlines)
    if not (is_by_the_clock and deadline and deadline.verdict and launch.owns_run):
        return None
    verdict = outcome | {
        "status": "failed",
        "exit_code": EXIT_DO_NOT_REQUEUE,
        "message": deadline.verdict,
    }
    _write_outcome(launch, verdict)
    return verdict


def find_failure(launch: Launch, session: Session) -> SessionFailure | None:
    """Return the failure after which a restart may help, or None if the run ended with the session."""
    outcome = session_outcome(launch, session)
    if outcome.get("exit_code") == EXIT_OK:
        return None
    step = max(int(beat.get("step") or 0) for beat in launch.newest_heartbeats().values())
    if session.stall is not None:
        return failure_from_stall(session.stall, step)
    if (lost := lost_rank(session, has_agent=launch.has_agent)) is not None:
        return failure_from_lost_rank(*lost, step)
    # A session that completed no step would fail in the same way again.
    if outcome.get("exit_code") != EXIT_TRAINING_FAILED or step <= session.first_step:
        return None
    reported = ProjectError("", str(outcome.get("message", "")), exit_code=EXIT_TRAINING_FAILED)
    error = read_error_file(launch.error_file) or reported
    return None if error.code in FINAL_CODES else failure_from_error(error, int(outcome.get("step") or step))


def session_outcome(launch: Launch, session: Session) -> Record:
    """Return the session's outcome; empty if the file is from an earlier launch."""
    is_earlier = session.earlier_outcome and session.earlier_outcome == file_stamp(launch.folder / OUTCOME)
    return {} if is_earlier else read_outcome(launch.folder)


def record_and_report_restart(launch: Launch, failure: SessionFailure, restarts: RestartPolicy) -> None:
    """Add a restart to the manifest and print it, with its reason and the checkpoint to resume from."""
    saved = saved_step(launch.folder)
    source = f"checkpoint {saved}" if saved else "the start"
    entry = {"why": failure.message, "step": failure.step, "kind": failure.kind, "from": source}
    with tolerate_full_disk("the restart to manifest.json"):
        record_restart(launch.folder, entry)
    count = f"restart {restarts.in_a_row} of {restarts.most}"
    console.log(printable(f"{failure.message}; restarting from {source} ({count})"))
    if failure.step > saved + 1:
        # Their lines are the same, so nothing is printed until the run has passed them.
        console.log(f"steps {saved + 1:,} to {failure.step:,} are repeated, and not printed again")


def summarize_session(
    launch: Launch, session: Session, forwarder: Forwarder, verdict: Mapping[str, Any] | None = None
) -> Summary:
    """Summarize the last session from its files, or from the launcher's verdict.

    If this launch owns the run, also writes a missing outcome.json, and adds the restarts to an existing one.
    """
    ending = summarize_run(
        launch.folder,
        session.trainer_code,
        forwarder.seen,
        launch.error_file,
        has_begun=session.has_begun,
        verdict=session_outcome(launch, session) if verdict is None else verdict,
    )
    # A trainer that found the disk full, or failed before its session, has written no outcome.
    is_missing = verdict is None and launch.folder.is_dir() and not (launch.folder / OUTCOME).exists()
    if launch.owns_run and is_missing:
        _write_outcome(launch, _summary_as_outcome(launch, ending))
    elif launch.owns_run and ending.restarts:
        outcome = read_outcome(launch.folder) or _summary_as_outcome(launch, ending)
        with tolerate_full_disk("the restarts to outcome.json"):
            write_json(launch.folder / OUTCOME, {**outcome, "restarts": ending.restarts})
    return ending


def summarize_failed_run(
    launch: Launch, session: Session, forwarder: Forwarder, failure: SessionFailure, verdict: RestartDecision
) -> Summary:
    """Write the failure and the reason against a restart to outcome.json, and summarize the run.

    On a worker node, nothing is written.
    """
    if not launch.owns_run:
        return summarize_session(launch, session, forwarder)
    # A killed trainer reports no step, and may have done more steps since its last heartbeat.
    is_known = failure.kind == "lost" and failure.step > 0
    known = f"its last heartbeat is of step {failure.step}" if is_known else ""
    outcome = {
        "status": "failed",
        "exit_code": verdict.exit_code,
        "step": failure.step,
        "message": "; ".join(part for part in (failure.message, known, verdict.reason) if part),
    }
    if failure.kind == "reported" and failure.cause:
        outcome |= {"code": failure.cause, "hint": failure.hint}
    _write_outcome(launch, outcome)
    # The summary prefers the error file, which does not hold the launcher's verdict.
    if failure.kind != "reported" or verdict.reason:
        launch.error_file.unlink(missing_ok=True)
    return summarize_session(launch, session, forwarder, outcome)


def _write_outcome(launch: Launch, outcome: Mapping[str, Any]) -> None:
    with tolerate_full_disk("the outcome to outcome.json"):
        write_json(launch.folder / OUTCOME, outcome)


def _summary_as_outcome(launch: Launch, summary: Summary) -> Record:
    """Return the outcome of a session that wrote none: its summary, and the error that it reported."""
    error, problem = read_error_file(launch.error_file), {"message": summary.message.partition("\n")[0]}
    if error is not None:
        problem = {"message": error.message, "code": error.code, "hint": error.hint}
    known = {"status": summary.status, "exit_code": summary.exit_code, "step": summary.step}
    return {**known, **problem, "restarts": summary.restarts}


def _was_stopped(forwarder: Forwarder) -> bool:
    return bool(forwarder.seen)


@dataclass(frozen=True, slots=True)
class SessionFailure:
    """Failure of a session.

    Attributes:
        cause: phase of a stall, signal of a killed process, or code of a reported error.
        step: completed optimizer steps.
        is_transient: whether the cause may be outside the run, so that a repeated failure is retried.
    """

    kind: Literal["stall", "lost", "reported"]
    cause: str
    step: int
    message: str
    is_transient: bool
    hint: str = ""

    def is_like(self, other: SessionFailure) -> bool:
        """Return whether both failures have the same kind, cause and step."""
        return (self.kind, self.cause, self.step) == (other.kind, other.cause, other.step)


def failure_from_stall(stall: Stall, step: int) -> SessionFailure:
    """Return the failure of a session that hung."""
    is_transient = stall.phase in TRANSIENT_PHASES
    return SessionFailure("stall", stall.phase, step, str(stall), is_transient=is_transient)


def failure_from_lost_rank(rank: int | None, number: int, step: int) -> SessionFailure:
    """Return the failure of a session in which a signal killed a rank, or torchrun (rank None).

    Args:
        number: the signal.
    """
    name = signal_name(number)
    hint = "; the kernel does that when memory runs out" if number == signal.SIGKILL else ""
    process = "torchrun" if rank is None else f"rank {rank}"
    message = f"{process} was killed by {name}{hint}"
    return SessionFailure("lost", name, step, message, is_transient=number in TRANSIENT_SIGNALS)


def failure_from_error(error: ProjectError, step: int) -> SessionFailure:
    """Return the failure of a session that reported an error."""
    is_transient = error.code in TRANSIENT_CODES
    return SessionFailure(
        "reported", error.code, step, error.message, is_transient=is_transient, hint=error.hint
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecision:
    """Decision about a failed run: restart it, or end it with this exit code and reason."""

    restarts: bool
    exit_code: int = EXIT_TRAINING_FAILED
    reason: str = ""


@dataclass(slots=True)
class RestartPolicy:
    """Decides about restarts from the failures of one launch.

    Attributes:
        most: maximum number of restarts without a new checkpoint.
        in_a_row: restarts since the newest checkpoint.
    """

    most: int
    failures: list[SessionFailure] = field(default_factory=list)
    in_a_row: int = 0
    _saved_step: int = -1

    def judge(self, failure: SessionFailure, saved_step: int) -> RestartDecision:
        """Record a failure and decide whether to restart.

        A run ends if a failure that is not transient repeats, or after `most` restarts without a checkpoint.

        Args:
            saved_step: step of the newest checkpoint; 0 if there is none.
        """
        before = self.failures[-1] if self.failures else None
        self.failures.append(failure)
        if before is not None and failure.is_like(before) and not failure.is_transient:
            reason = f"same failure twice at step {failure.step}: not retrying"
            return RestartDecision(restarts=False, exit_code=EXIT_DO_NOT_REQUEUE, reason=reason)
        # A newer checkpoint is progress, so earlier restarts no longer count.
        if saved_step > self._saved_step:
            self.in_a_row, self._saved_step = 0, saved_step
        if self.in_a_row >= self.most:
            limit = f"no new checkpoint after {counted(self.most, 'restart')}: not retrying"
            return RestartDecision(restarts=False, reason=limit if self.most else "")
        self.in_a_row += 1
        return RestartDecision(restarts=True)
