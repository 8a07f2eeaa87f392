"""Supervision of a run: sessions, restarts and outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launcher.io.files import write_json
from launcher.process.signal_forwarding import Forwarder
from launcher.run.launch_context import Launch, nearest
from launcher.run.launch_records import record_restart
from launcher.run.restart_policy import (
    FINAL_CODES,
    Failure,
    Restarts,
    Verdict,
    of_error,
    of_lost,
    of_stall,
)
from launcher.run.session import (
    Session,
    lost_rank,
    run_session,
    stop_orphans,
    tolerating_full_disk,
)
from launcher.run.summary import Summary, conclude, saved_step
from launcher.rundir.records import Record, read_outcome, stamp
from launcher.terminal import console
from neobert.errors import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_TRAINING_FAILED,
    ProjectError,
    read_error_file,
)
from neobert.printable import printable
from neobert.runfiles.attempt import replaced_error
from neobert.runfiles.run_dir import OUTCOME

STUCK = "one of its processes hangs in the kernel, cannot be killed, and holds its device"


def supervise(launch: Launch, forwarder: Forwarder, on_tick: Callable[[], None]) -> Summary:
    """Run sessions until the run ends or a restart cannot help."""
    most = launch.limits.max_restarts if launch.owns_run and launch.topology.nnodes == 1 else 0
    restarts = Restarts(most)
    if launch.owns_run and stop_orphans(launch):
        raise _blocked_by_earlier_session(launch)
    # From here on signals belong to the trainer, including those that arrive between two sessions.
    forwarder.keep_for_trainer(has_agent=launch.has_agent)
    while True:
        session = run_session(launch, forwarder, on_tick, is_again=bool(restarts.failures))
        if launch.is_replaced:
            return conclude_replaced(launch, session, forwarder)
        verdict_of_stage = failed_stage(launch)
        is_over = verdict_of_stage is not None or _was_stopped(forwarder)
        failure = None if is_over else failure_of(launch, session)
        if failure is None:
            final_verdict = verdict_of_stage or too_late(launch, forwarder)
            return conclude_session(launch, session, forwarder, final_verdict)
        verdict = restarts.judge(failure, saved_step(launch.folder))
        if reason := why_no_restart(launch, session):
            verdict = Verdict(restarts=False, reason=reason)
        if not verdict.restarts:
            return give_up(launch, session, forwarder, failure, verdict)
        restart(launch, failure, restarts)


def conclude_replaced(launch: Launch, session: Session, forwarder: Forwarder) -> Summary:
    """Summarize a session that a later launch has replaced; the run directory is left to that launch."""
    error = replaced_error(launch.folder)
    outcome = {"status": "failed", "exit_code": error.exit_code, "message": error.message, "hint": error.hint}
    return conclude(launch.folder, session.trainer_code, forwarder.seen, None, verdict=outcome)


def why_no_restart(launch: Launch, session: Session) -> str:
    """Return the reason that a restart cannot help; empty if a restart may help."""
    if session.num_stuck:
        return STUCK
    return "" if launch.folder.is_dir() else f"not restarting: {launch.folder} was moved or deleted"


def failed_stage(launch: Launch) -> dict[str, Any] | None:
    """Write and return the outcome of a run that failed a stage; None if no stage failed.

    It replaces the outcome that the session reported.
    """
    if launch.stages is None:
        return None
    launch.stages.look()
    if not launch.stages.failure:
        return None
    verdict = read_outcome(launch.folder) | {
        "status": "failed",
        "exit_code": EXIT_DO_NOT_REQUEUE,
        "message": launch.stages.failure,
    }
    _write_verdict(launch, verdict)
    return verdict


def too_late(launch: Launch, forwarder: Forwarder) -> dict[str, Any] | None:
    """Write and return the outcome of a run that a deadline stopped and that must not be requeued.

    Returns None for any other run.
    """
    outcome = read_outcome(launch.folder)
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


def _blocked_by_earlier_session(launch: Launch) -> ProjectError:
    return ProjectError(
        code="run-in-progress",
        message=f"an earlier session still uses this directory: {STUCK}",
        hint="use another machine, or reboot this one",
        place=str(launch.folder),
    )


def failure_of(launch: Launch, session: Session) -> Failure | None:
    """Return the failure of a session that may be restarted; None if the run ended with the session."""
    outcome = outcome_of(launch, session)
    if outcome.get("exit_code") == EXIT_OK:
        return None
    step = max(int(beat.get("step") or 0) for beat in launch.beats().values())
    if session.stall is not None:
        return of_stall(session.stall, step)
    if (lost := lost_rank(session, has_agent=launch.has_agent)) is not None:
        return of_lost(*lost, step)
    # A session that completed no step would fail in the same way again.
    if outcome.get("exit_code") != EXIT_TRAINING_FAILED or step <= session.first_step:
        return None
    reported = ProjectError("", str(outcome.get("message", "")), exit_code=EXIT_TRAINING_FAILED)
    error = read_error_file(launch.error_file) or reported
    return None if error.code in FINAL_CODES else of_error(error, int(outcome.get("step") or step))


def outcome_of(launch: Launch, session: Session) -> Record:
    """Return the session's outcome; empty if the file is from an earlier launch."""
    is_earlier = session.earlier_outcome and session.earlier_outcome == stamp(launch.folder / OUTCOME)
    return {} if is_earlier else read_outcome(launch.folder)


def restart(launch: Launch, failure: Failure, restarts: Restarts) -> None:
    """Report and record a restart, with its reason and the checkpoint to resume from."""
    saved = saved_step(launch.folder)
    source = f"checkpoint {saved}" if saved else "the start"
    entry = {"why": failure.message, "step": failure.step, "kind": failure.kind, "from": source}
    with tolerating_full_disk("the restart to manifest.json"):
        record_restart(launch.folder, entry)
    count = f"restart {restarts.in_a_row} of {restarts.most}"
    console.log(printable(f"{failure.message}; restarting from {source} ({count})"))
    if failure.step > saved + 1:
        # Their lines are the same, so nothing is printed until the run has passed them.
        console.log(f"steps {saved + 1:,} to {failure.step:,} are repeated, and not printed again")


def conclude_session(
    launch: Launch, session: Session, forwarder: Forwarder, verdict: Mapping[str, Any] | None = None
) -> Summary:
    """Summarize the last session from its files, or from the launcher's verdict."""
    ending = conclude(
        launch.folder,
        session.trainer_code,
        forwarder.seen,
        launch.error_file,
        has_begun=session.has_begun,
        verdict=outcome_of(launch, session) if verdict is None else verdict,
    )
    # A trainer that found the disk full, or failed before its session, has written no outcome.
    is_missing = verdict is None and launch.folder.is_dir() and not (launch.folder / OUTCOME).exists()
    if launch.owns_run and is_missing:
        _write_verdict(launch, _known_outcome(launch, ending))
    elif launch.owns_run and ending.restarts:
        outcome = read_outcome(launch.folder) or _known_outcome(launch, ending)
        with tolerating_full_disk("the restarts to outcome.json"):
            write_json(launch.folder / OUTCOME, {**outcome, "restarts": ending.restarts})
    return ending


def give_up(
    launch: Launch, session: Session, forwarder: Forwarder, failure: Failure, verdict: Verdict
) -> Summary:
    """Write the failure and the reason against a restart to outcome.json, and summarize the run.

    On a worker node, nothing is written.
    """
    if not launch.owns_run:
        return conclude_session(launch, session, forwarder)
    outcome = {
        "status": "failed",
        "exit_code": verdict.exit_code,
        "step": failure.step,
        "message": "; ".join(part for part in (failure.message, verdict.reason) if part),
    }
    if failure.kind == "reported" and failure.cause:
        outcome |= {"code": failure.cause, "hint": failure.hint}
    _write_verdict(launch, outcome)
    # The summary prefers the error file, which does not hold the launcher's verdict.
    if failure.kind != "reported" or verdict.reason:
        launch.error_file.unlink(missing_ok=True)
    return conclude_session(launch, session, forwarder, outcome)


def _write_verdict(launch: Launch, outcome: Mapping[str, Any]) -> None:
    """Write outcome.json; a full disk here is logged, not fatal."""
    with tolerating_full_disk("the outcome to outcome.json"):
        write_json(launch.folder / OUTCOME, outcome)


def _known_outcome(launch: Launch, ending: Summary) -> Record:
    """Return the outcome of a session that wrote none: its summary, and the error that it reported."""
    error, problem = read_error_file(launch.error_file), {"message": ending.message.partition("\n")[0]}
    if error is not None:
        problem = {"message": error.message, "code": error.code, "hint": error.hint}
    known = {"status": ending.status, "exit_code": ending.exit_code, "step": ending.step}
    return {**known, **problem, "restarts": ending.restarts}


def _was_stopped(forwarder: Forwarder) -> bool:
    return bool(forwarder.seen)
