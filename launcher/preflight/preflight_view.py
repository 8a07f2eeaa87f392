"""Preflight report as text: verdict, key figures, findings and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime

from launcher.preflight.receipts import Examination
from launcher.probes.gpus import NO_GPU
from launcher.report.formats.text import finding_text
from launcher.report.plan_view import Row, decision_rows, plan_head
from launcher.report.text_view import conversation_text, files_rows, left_out_lines
from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import cut_end, fold
from launcher.terminal.table import format_columns
from launcher.terminal.values import show_count, show_duration, show_mib, show_number
from neobert.plurals import counted, listed
from neobert.printable import printable
from validators.facts import Facts
from validators.finding import CheckResult, Level, Status
from validators.remaining import remaining_epochs, remaining_in_launch, remaining_in_run

MEANING = {
    "pass": ("green", "all required checks passed"),
    "fail": ("red", "warnings block this run (--strict)"),
    "unknown": ("yellow", "a required check could not run"),
}
INDENT = BETWEEN = "  "
CUT = " ... (--verbose)"
MAX_REASONS = 3
MAX_CODES = 3
LOG_WIDTH = 160
"""Width to which reasons are cut in a pipe or a log."""
STATUS_ORDER = (Status.PASS, Status.WARN, Status.FAIL, Status.SKIP, Status.UNKNOWN)


def preflight_text(examination: Examination, *, verbose: bool) -> str:
    """Return the report of a preflight as text: a summary, or with `verbose` all checks and reasons."""
    unjudged = [check for check in examination.report.checks if _has_no_result(check)]
    findings = [finding_text(finding) for finding in examination.report.findings]
    causes = "\n".join(
        [*_reasons_without_result(unjudged, verbose=verbose), *_hint_without_gpu(examination, unjudged)]
    )
    if verbose:
        shown = [_decisions_text(examination), _conversation_text(examination)]
        parts = [_verdict_text(examination), *shown, *findings, causes, _checks_table(examination)]
        return "\n\n".join([*filter(None, parts), _closing_text(examination)])
    figures = filter(
        None, (_verdict_text(examination), _key_figures(examination), _conversation_text(examination))
    )
    head = "\n".join(figures)
    if findings:
        return "\n\n".join(
            filter(None, [head, *findings, f"{causes}\n{_closing_text(examination)}".lstrip()])
        )
    return "\n".join(filter(None, [head, causes, _closing_text(examination)]))


def _verdict_text(examination: Examination) -> str:
    colour, meaning = MEANING[examination.report.verdict]
    word = paint(examination.report.verdict.upper(), colour, "bold")
    named = dict.fromkeys(check.id for check in examination.report.checks if check.status is Status.FAIL)
    text = f"{', '.join(named)} failed" if named else meaning
    code = examination.report.exit_code
    return fold(f"{word}: {text}{f' (exit {code})' if code else ''}", console.terminal_width())


def _decisions_text(examination: Examination) -> str:
    facts = examination.facts
    decisions = [*_decision_rows(examination), *text_rows(examination), *measured_rows(facts)]
    rows = [[name, value, reason] for name, value, reason in decisions]
    return f"{plan_head(examination.run, examination.plan)}\n{format_columns(rows, indent='  ')}"


def _decision_rows(examination: Examination) -> Iterator[Row]:
    left = remaining_in_launch(examination.run, examination.plan, examination.facts)
    return decision_rows(examination.plan, left, examination.predicted)


def _key_figures(examination: Examination) -> str:
    plan = examination.plan
    rows = [*_decision_rows(examination), *text_rows(examination)]
    rows += measured_rows(examination.facts)
    head = plan_head(examination.run, plan).splitlines()[0]
    shown = (
        f"{name}: {value}" for name, value, _ in rows if not (name == "cost" and plan.cost.value is None)
    )
    figures = f"  {BETWEEN.join(map(printable, shown))}"
    return f"{head}\n{fold(figures, console.terminal_width(), BETWEEN, hanging='  ')}"


def _conversation_text(examination: Examination) -> str:
    """Return the first conversation and the counts of what is left out; empty for other text."""
    found = examination.facts.prepared
    if found is None or not found.sample:
        return ""
    return "\n".join([conversation_text(found.sample), *left_out_lines(found.conversations)])


def _has_no_result(check: CheckResult) -> bool:
    return check.status is Status.UNKNOWN or (check.required and check.status is Status.SKIP)


def _reasons_without_result(checks: list[CheckResult], *, verbose: bool) -> Iterator[str]:
    """Yield a line per reason why checks have no result.

    Unless `verbose`, there are at most `MAX_REASONS` lines, each cut to the width of the terminal.
    """
    groups: dict[tuple[Status, str], list[CheckResult]] = {}
    for check in checks:
        reason = NO_GPU if NO_GPU in check.message else check.message
        groups.setdefault((check.status, reason), []).append(check)
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))
    shown = largest if verbose or len(largest) <= MAX_REASONS else largest[: MAX_REASONS - 1]
    for (status, reason), group in shown:
        text = printable(_reason_with_codes(reason, group, most=len(group) if verbose else MAX_CODES))
        room = (console.terminal_width() or LOG_WIDTH) - len(str(status)) - 1
        if not verbose:
            text = cut_end(text, room, CUT)
        yield fold(f"{paint(str(status), 'yellow', 'bold')} {text}", console.terminal_width())
    if rest := largest[len(shown) :]:
        text = f"{counted(sum(len(group) for _, group in rest), 'more check')} not run"
        yield f"{paint(str(Status.UNKNOWN), 'yellow', 'bold')} {text}: {len(rest)} other reasons (--verbose)"


def _hint_without_gpu(examination: Examination, unjudged: list[CheckResult]) -> Iterator[str]:
    profile = examination.run.profile
    is_development = profile is not None and profile.kind == "development"
    if is_development and any(NO_GPU in check.message for check in unjudged):
        yield f"  {paint('= hint:', 'cyan')} set profile to cpu to train on the CPU"


def _reason_with_codes(reason: str, checks: list[CheckResult], most: int) -> str:
    """Return a reason with the codes of its checks; for more than `most` checks, the first code and a count.

    The codes must leave room for the reason. A missing GPU affects too many checks to list any.
    """
    if reason == NO_GPU:
        return f"{NO_GPU}: {counted(len(checks), 'check')} not run"
    if len(checks) == 1:
        return f"{checks[0].id} {checks[0].name}: {reason}"
    codes = [check.id for check in checks]
    return f"{listed(codes, len(codes) if len(codes) <= most else 1, ' ')}: {reason}"


def _checks_table(examination: Examination) -> str:
    rows = [
        [check.id, str(check.status), str(check.level), check.name, check.message]
        for check in examination.report.checks
    ]
    return format_columns(rows, indent="  ")


def _closing_text(examination: Examination) -> str:
    """Return the counts of check results; before them, the checks reused from an earlier receipt, if any."""
    if not examination.reused:
        return _counts_text(examination)
    time_utc = datetime.fromisoformat(examination.reused_utc).strftime("%Y-%m-%d %H:%M UTC")
    source = f"measured {time_utc}; `neobert-launch preflight` measures them again"
    reused = f"reused {' '.join(examination.reused)}: {source}"
    return f"{fold(printable(reused), console.terminal_width(), hanging=INDENT)}\n{_counts_text(examination)}"


def _counts_text(examination: Examination) -> str:
    checks = examination.report.checks
    ended = Counter(check.status for check in checks)
    counts = ", ".join(f"{ended[status]} {status}" for status in STATUS_ORDER if ended[status])
    text = f"{counted(len(checks), 'check')} ({', '.join(examination.levels)}): {counts}"
    if Level.HOST in examination.levels and Level.DATA not in examination.levels:
        text += "; the data was not prepared (`neobert-launch preflight --level data` prepares and checks it)"
    return fold(text, console.terminal_width(), hanging=INDENT)


def text_rows(examination: Examination) -> Iterator[Row]:
    """Yield the rows about the text: its files, and the number of epochs."""
    plan, facts = examination.plan, examination.facts
    yield from files_rows([asdict(each) for each in facts.text or ()])
    found = facts.prepared
    if found is not None and found.epochs is not None:
        epochs = show_number(found.epochs, 3)
        yield "epochs", epochs, f"the run's tokens / {show_count(found.num_tokens)} of prepared text"
    elif (passes := remaining_epochs(plan, remaining_in_run(examination.run, plan, facts))) is not None:
        yield "epochs", f"about {show_number(passes, 3)}", plan.epochs.reason


def measured_rows(facts: Facts) -> Iterator[Row]:
    """Yield the rows with measured speed and memory, as far as a rehearsal measured them."""
    found = facts.rehearsal
    if found is None:
        return
    where = f"rehearsed on {found.num_ranks} x {found.device_name} in {show_duration(found.duration_s)}"
    if found.speed is not None:
        mfu = "unknown" if found.speed.mfu is None else f"{found.speed.mfu:.1%}"
        yield "measured speed", f"{show_count(found.speed.tokens_per_second)} tokens/s, MFU {mfu}", where
    if found.memory is not None:
        memory = found.memory
        reason = f"{show_mib(memory.peak_allocated_mib)} allocated, context {show_mib(memory.context_mib)}"
        yield "measured peak", f"{show_mib(memory.peak_mib)} of {show_mib(memory.total_mib)}", reason
