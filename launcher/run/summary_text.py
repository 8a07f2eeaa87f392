"""Summary of an ended run as text."""

from __future__ import annotations

import shlex

from launcher.run.summary import Summary
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.metric_text import label_of, metric_text, value_text
from launcher.terminal.values import show_count
from neobert.errors import EXIT_CHECK_FAILED, EXIT_DO_NOT_REQUEUE, EXIT_OK
from neobert.plurals import percent
from neobert.printable import printable
from neobert.runfiles.run_dir import LOGS, MANIFEST


def summary_text(ending: Summary, *, keeps_checkpoints: bool = True) -> str:
    """Return steps, tokens, evaluation, checkpoint and next command as text.

    Args:
        keeps_checkpoints: False omits the checkpoints of a finished run, because the caller deletes them.
    """
    names_checkpoints = keeps_checkpoints or ending.exit_code != EXIT_OK
    of = f" of {ending.max_steps}" if ending.max_steps else ""
    tokens = f", {show_count(ending.tokens_total)} tokens" if ending.tokens_total else ""
    lines = [printable(f"{ending.status} at step {ending.step}{of}{tokens} (exit {ending.exit_code})")]
    lines += _evaluations(ending, names_checkpoints=names_checkpoints)
    if ending.corpus_shares:
        shares = ", ".join(f"{name} {percent(share)}" for name, share in ending.corpus_shares.items())
        lines.append(printable(f"tokens by corpus: {shares}"))
    if ending.restarts:
        lines.append(f"restarts: {ending.restarts}, see {MANIFEST} and {LOGS}/ in the run directory")
    if ending.checkpoint and names_checkpoints:
        lines.append(printable(f"checkpoint: {ending.checkpoint}"))
    if ending.tokens_total and ending.run_directory:
        command = shlex.join(["neobert-launch", "report", ending.run_directory])
        lines.append(printable(f"charts: {command}"))
    if ending.message:
        lines.insert(1, ending.message)
    is_final = ending.exit_code in (EXIT_CHECK_FAILED, EXIT_DO_NOT_REQUEUE)
    when = "after the fix" if is_final else "next"
    has_next = ending.next_command and names_checkpoints
    following = [printable(f"{when}: {ending.next_command}")] if has_next else []
    return "\n".join([fold("\n".join(lines), console.width()), *following])


def _evaluations(ending: Summary, *, names_checkpoints: bool) -> list[str]:
    """Return the first and last value of each metric in a line, or a single evaluation with its step."""
    first, last = ending.first_evaluation, ending.last_evaluation
    if not last:
        return []
    if ending.first_eval_step == ending.last_eval_step:
        shown = [_change(name, None, value) for name, value in last.items()]
        return [f"{', '.join(shown)} at step {ending.last_eval_step}"]
    changes = [_change(name, first.get(name), value) for name, value in last.items()]
    return [", ".join(changes), *_earlier_best(ending, names_checkpoints=names_checkpoints)]


def _earlier_best(ending: Summary, *, names_checkpoints: bool) -> list[str]:
    """Return the best evaluation with its checkpoint; nothing if it is the last one."""
    best = ending.best
    if best is None or best.step == ending.last_eval_step:
        return []
    checkpoint = ""
    if names_checkpoints:
        kept = ending.best_checkpoint
        checkpoint = f": {kept}" if kept else f" ({_instead_of_best(ending.linked_best_step)})"
    return [printable(f"best: {metric_text(best.metric, best.value)} at step {best.step}{checkpoint}")]


def _instead_of_best(linked_step: int | None) -> str:
    """State that the best step has no checkpoint, and which checkpoint `checkpoints/best` is."""
    linked = "" if linked_step is None else f"; checkpoints/best is step {linked_step}"
    return f"no checkpoint of that step{linked}"


def _change(name: str, first: float | None, last: float) -> str:
    """Format `accuracy: 9.46% -> 20.92%`."""
    before = "" if first is None else f"{value_text(name, first)} -> "
    return f"{label_of(name)}: {before}{value_text(name, last)}"
