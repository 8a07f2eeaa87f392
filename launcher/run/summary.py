"""Summary of an ended run: exit code, result, last checkpoint and next command."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.process.child_start import log_path
from launcher.process.signal_forwarding import STOPS
from launcher.process.termination import signal_name
from launcher.process.trainer_process import AGENT_LOG
from launcher.run.next_command import next_command
from launcher.rundir.records import (
    Record,
    failure_reason,
    get_list,
    last_heartbeat,
    last_lines,
    read_json,
    read_outcome,
)
from launcher.rundir.run_status import BestEvaluation, History, evaluation_metrics, find_best
from launcher.terminal import console
from launcher.terminal.console import plain_description
from launcher.terminal.fold import fold
from launcher.terminal.metric_text import metric_label, metric_text, value_text
from launcher.terminal.values import add_schema_version, show_count
from neobert.errors import (
    EXIT_CHECK_FAILED,
    EXIT_DO_NOT_REQUEUE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_TRAINING_FAILED,
    ProjectError,
    read_error_file,
)
from neobert.metric_names import CORPUS_SHARE, EVAL_LOSS
from neobert.plurals import percent
from neobert.printable import printable
from neobert.runfiles.checkpoint.folders import (
    BEST,
    checkpoint_steps,
    latest_checkpoint,
    newest_usable_checkpoint,
)
from neobert.runfiles.checkpoint.manifest import verify_sizes
from neobert.runfiles.checkpoint.refusal import CODE as BROKEN_RESUME
from neobert.runfiles.run_dir import CHECKPOINTS, LOGS, MANIFEST, METRICS, RESOLVED

TAIL_BYTES = 8192
WITHOUT_MESSAGE = (EXIT_OK, EXIT_PREEMPTED, EXIT_INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a run after its trainer has ended.

    Attributes:
        status: finished, preempted, interrupted or failed.
        message: error with hint; empty if nothing went wrong.
        checkpoint: newest checkpoint; empty if there is none.
        restarts: number of times that this launch restarted the run.
        first_evaluation, last_evaluation: all metrics of the first and the last evaluation, by name.
        best: best evaluation by the metric that selects checkpoints, or None.
        best_checkpoint: checkpoint of the best step; empty if there is none.
        linked_best_step: step of the checkpoint that `checkpoints/best` links to, or None without a link.
        next_command: command to run next; empty if the message names something to fix first.
    """

    status: str
    exit_code: int
    step: int
    max_steps: int | None
    tokens_total: int | None
    first_eval_step: int | None
    first_eval_loss: float | None
    last_eval_step: int | None
    last_eval_loss: float | None
    checkpoint: str
    run_directory: str
    restarts: int
    message: str
    next_command: str
    corpus_shares: dict[str, float] = field(default_factory=dict)
    first_evaluation: dict[str, float] = field(default_factory=dict)
    last_evaluation: dict[str, float] = field(default_factory=dict)
    best: BestEvaluation | None = None
    best_checkpoint: str = ""
    linked_best_step: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all fields and the version of the schema as JSON values."""
        return add_schema_version(asdict(self))


def summarize_run(
    folder: Path,
    code: int,
    signals: Sequence[int],
    error_file: Path | None,
    *,
    has_begun: bool = True,
    verdict: Mapping[str, Any] | None = None,
) -> Summary:
    """Summarize a run from its files.

    Args:
        code: exit code of the child, negative for a signal.
        signals: signals that were forwarded to the child.
        error_file: file in which the trainer reports an error; None to ignore it.
        has_begun: whether the trainer wrote a heartbeat.
        verdict: outcome according to the launcher; None reads outcome.json.
    """
    outcome = dict(read_outcome(folder) if verdict is None else verdict)
    error = read_error_file(error_file) if error_file else None
    if not outcome and error is None:
        outcome = _inferred_outcome(folder, code, signals, has_begun=has_begun)
    exit_code = _exit_code(outcome, error, code, signals)
    history = History.read(folder / METRICS)
    evaluations = [line for line in history.evaluations if EVAL_LOSS in line] or [{}]
    first, last = evaluations[0], evaluations[-1]
    beat = last_heartbeat(folder, 0)
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    best = find_best(read_json(folder / RESOLVED), history)
    has_best = best is not None and best.step in checkpoint_steps(folder / CHECKPOINTS)
    # Resuming again would fail too if the trainer rejected the checkpoint.
    is_rejected = error is not None and error.code == BROKEN_RESUME
    return Summary(
        status=str(outcome.get("status") or _status_of_code(exit_code)),
        exit_code=exit_code,
        step=int(outcome.get("step") or beat.get("step") or 0),
        max_steps=beat.get("max_steps"),
        tokens_total=beat.get("tokens_total"),
        first_eval_step=first.get("step"),
        first_eval_loss=first.get(EVAL_LOSS),
        last_eval_step=last.get("step"),
        last_eval_loss=last.get(EVAL_LOSS),
        checkpoint=str(checkpoint) if checkpoint else "",
        run_directory=str(folder),
        restarts=len(get_list(read_json(folder / MANIFEST), "restarts")),
        message=_end_message(outcome, error, code, folder) if exit_code not in WITHOUT_MESSAGE else "",
        next_command="" if is_rejected else next_command(exit_code, checkpoint, folder),
        corpus_shares=_corpus_shares(history.trained),
        first_evaluation=evaluation_metrics(first),
        last_evaluation=evaluation_metrics(last),
        best=best,
        best_checkpoint=str(folder / CHECKPOINTS / str(best.step)) if best and has_best else "",
        linked_best_step=_linked_step(folder / CHECKPOINTS / BEST),
    )


def _linked_step(link: Path) -> int | None:
    """Return the step of the checkpoint that a link points to, or None if it does not point to one."""
    try:
        name = os.readlink(link)
    except OSError:
        return None
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else None


def summarize_finished_run(folder: Path) -> Summary:
    """Summarize a run that is already complete, ignoring the outcome of its last session."""
    ending = summarize_run(folder, EXIT_OK, (), None)
    checkpoint = Path(ending.checkpoint) if ending.checkpoint else None
    return replace(
        ending,
        status="finished",
        exit_code=EXIT_OK,
        message="",
        next_command=next_command(EXIT_OK, checkpoint, folder),
    )


def _inferred_outcome(folder: Path, code: int, signals: Sequence[int], *, has_begun: bool) -> Record:
    """Infer the outcome of a trainer that did not write one; empty if only its exit code is known."""
    if _was_stopped_early(code, signals, has_begun=has_begun):
        return {"exit_code": EXIT_PREEMPTED}
    is_finished = code == EXIT_OK and _has_final_checkpoint(folder)
    if has_begun and (code == EXIT_PREEMPTED or is_finished):
        return {"exit_code": code}  # it had saved, but the disk was too full for an outcome
    return {}


def _has_final_checkpoint(folder: Path) -> bool:
    """Return whether there is a checkpoint of the last step.

    Lists the checkpoint folders, because the `latest` link may be missing after a full disk.
    """
    max_steps = last_heartbeat(folder, 0).get("max_steps")
    return max_steps is not None and max(checkpoint_steps(folder / CHECKPOINTS), default=-1) >= max_steps


def saved_step(folder: Path) -> int:
    """Return the step of the newest checkpoint whose files have the recorded sizes; 0 if there is none.

    `latest` may be outdated after a killed save. The trainer compares the content of the files when it reads
    them.
    """
    newest = newest_usable_checkpoint(folder / CHECKPOINTS, verify_sizes)
    return int(newest.name) if newest else 0


def _was_stopped_early(code: int, signals: Sequence[int], *, has_begun: bool) -> bool:
    """Return whether a signal stopped the trainer before it could handle signals, with nothing to save."""
    was_requested = not set(STOPS).isdisjoint(signals)
    return was_requested and signal.SIGINT not in signals and (code == -signal.SIGTERM or not has_begun)


def _exit_code(outcome: Record, error: ProjectError | None, code: int, signals: Sequence[int]) -> int:
    """Return the exit code that the trainer reported; if there is none, the code of Ctrl-C or a failure."""
    if isinstance(outcome.get("exit_code"), int):
        return int(outcome["exit_code"])
    if error is not None:
        return error.exit_code
    was_interrupted = code == -signal.SIGINT or (code != 0 and signal.SIGINT in signals)
    return EXIT_INTERRUPTED if was_interrupted else EXIT_TRAINING_FAILED


def _status_of_code(exit_code: int) -> str:
    return {EXIT_OK: "finished", EXIT_PREEMPTED: "preempted", EXIT_INTERRUPTED: "interrupted"}.get(
        exit_code, "failed"
    )


def _end_message(outcome: Record, error: ProjectError | None, code: int, folder: Path) -> str:
    log = _main_log_path(folder / LOGS)
    location = f"\n{printable(f'  = log: {log}')}" if log.exists() else ""  # deleted with its run directory
    if error is not None:
        return f"error: {plain_description(error)}{location}"
    if reported := failure_reason(outcome):
        hint = outcome.get("hint")
        return printable(reported) + (f"\n{printable(f'  = hint: {hint}')}" if hint else "") + location
    last = _last_line(log)
    return printable(f"{_signal_text(code)}{f': {last}' if last else ''}") + location


def _main_log_path(logs: Path) -> Path:
    """Return the path of rank 0's log, or of torchrun's log if rank 0 was not started."""
    rank, agent = log_path(logs, 0), logs / AGENT_LOG
    return agent if agent.exists() and not rank.exists() else rank


def _signal_text(code: int) -> str:
    if code >= 0:
        return f"the trainer exited with code {code} and wrote no outcome"
    hint = "; the kernel does that when memory runs out" if code == -signal.SIGKILL else ""
    return f"the trainer was killed by {signal_name(-code)}{hint}"


def _last_line(log: Path) -> str:
    lines = last_lines(log, TAIL_BYTES)
    return next((line.decode(errors="replace").strip() for line in reversed(lines) if line.strip()), "")


def _corpus_shares(line: Record) -> dict[str, float]:
    """Return the share of each corpus of a mixture in the tokens; empty if there is no mixture."""
    return {
        name.removeprefix(CORPUS_SHARE): share
        for name, share in line.items()
        if name.startswith(CORPUS_SHARE) and isinstance(share, float)
    }


def summary_text(summary: Summary, *, keeps_checkpoints: bool = True) -> str:
    """Return steps, tokens, evaluation, checkpoint and next command as text.

    Args:
        keeps_checkpoints: False omits the checkpoints of a finished run, because the caller deletes them.
    """
    names_checkpoints = keeps_checkpoints or summary.exit_code != EXIT_OK
    tokens = f", {show_count(summary.tokens_total)} tokens" if summary.tokens_total else ""
    lines = [printable(f"{_progress_text(summary)}{tokens} (exit {summary.exit_code})")]
    lines += _evaluation_lines(summary, names_checkpoints=names_checkpoints)
    if summary.corpus_shares:
        shares = ", ".join(f"{name} {percent(share)}" for name, share in summary.corpus_shares.items())
        lines.append(printable(f"tokens by corpus: {shares}"))
    if summary.restarts:
        lines.append(f"restarts: {summary.restarts}, see {MANIFEST} and {LOGS}/ in the run directory")
    if summary.checkpoint and names_checkpoints:
        lines.append(printable(f"checkpoint: {summary.checkpoint}"))
    if summary.tokens_total and summary.run_directory:
        command = shlex.join(["neobert-launch", "report", summary.run_directory])
        lines.append(printable(f"charts: {command}"))
    if summary.message:
        lines.insert(1, summary.message)
    is_final = summary.exit_code in (EXIT_CHECK_FAILED, EXIT_DO_NOT_REQUEUE)
    when = "after the fix" if is_final else "next"
    has_next = summary.next_command and names_checkpoints
    following = [printable(f"{when}: {summary.next_command}")] if has_next else []
    return "\n".join([fold("\n".join(lines), console.terminal_width()), *following])


def _progress_text(summary: Summary) -> str:
    """Return status and steps; of a failed run, the last complete step, because it failed in a later one."""
    of = f" of {summary.max_steps}" if summary.max_steps else ""
    if summary.status != "failed":
        return f"{summary.status} at step {summary.step}{of}"
    return f"failed after step {summary.step}{of}" if summary.step else f"failed before the end of step 1{of}"


def _evaluation_lines(summary: Summary, *, names_checkpoints: bool) -> list[str]:
    """Return the first and last value of each metric in a line, or a single evaluation with its step.

    Empty if the run was not evaluated.
    """
    first, last = summary.first_evaluation, summary.last_evaluation
    if not last:
        return []
    if summary.first_eval_step == summary.last_eval_step:
        shown = [_change_text(name, None, value) for name, value in last.items()]
        return [f"{', '.join(shown)} at step {summary.last_eval_step}"]
    changes = [_change_text(name, first.get(name), value) for name, value in last.items()]
    return [", ".join(changes), *_best_evaluation_lines(summary, names_checkpoints=names_checkpoints)]


def _best_evaluation_lines(summary: Summary, *, names_checkpoints: bool) -> list[str]:
    """Return a line with the best evaluation and its checkpoint; no line if the last one is the best."""
    best = summary.best
    if best is None or best.step == summary.last_eval_step:
        return []
    checkpoint = ""
    if names_checkpoints:
        kept = summary.best_checkpoint
        checkpoint = f": {kept}" if kept else f" ({_best_link_note(summary.linked_best_step)})"
    return [printable(f"best: {metric_text(best.metric, best.value)} at step {best.step}{checkpoint}")]


def _best_link_note(linked_step: int | None) -> str:
    """Return a note that the best step has no checkpoint, with the step that `checkpoints/best` links to."""
    linked = "" if linked_step is None else f"; checkpoints/best links to step {linked_step}"
    return f"no checkpoint of that step{linked}"


def _change_text(name: str, first: float | None, last: float) -> str:
    """Return a metric's change, as in `accuracy: 9.46% -> 20.92%`; only its last value if `first` is None."""
    before = "" if first is None else f"{value_text(name, first)} -> "
    return f"{metric_label(name)}: {before}{value_text(name, last)}"
