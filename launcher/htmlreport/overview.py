"""Head of a report: name, status, messages and key figures of a run, and its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import commonpath
from pathlib import Path

from launcher.htmlreport.markup import (
    NUM_COLORS,
    finite_number,
    html_muted,
    html_table,
    html_text,
    html_time,
    mapping_or_empty,
)
from launcher.htmlreport.run_record import RunRecord
from launcher.rundir.records import Record, failure_reason, get_list, get_records, outcome_for_state
from launcher.terminal.values import show_count, show_duration, show_number
from neobert.metric_names import EVAL_LOSS, TOKENS, TRAIN_LOSS
from neobert.plurals import counted
from neobert.units import SECONDS_PER_HOUR

EARLY = 0.25
"""Share of a run's steps; an earlier best value gets the metric's note on early best values, if any."""
STATES = {True: "running", False: "died", None: "no outcome"}


def heading_html(run: RunRecord) -> str:
    """Render name, messages and key figures of a run."""
    tiles = "".join(
        f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>"
        for name, value in _key_figures(run)
    )
    return f'{_run_heading_html(run)}<dl class="tiles">{tiles}</dl>'


def headings_html(runs: Sequence[RunRecord]) -> str:
    """Render the names of several runs, a table with one row of key figures each, and their messages."""
    tiles = [dict(_key_figures(run)) for run in runs]
    heads = dict.fromkeys(name for each in tiles for name in each)
    rows = [
        [marked_name(run, number), *(html_text(each.get(name, "-")) for name in heads)]
        for number, (run, each) in enumerate(zip(runs, tiles, strict=True))
    ]
    banners = "".join(_banners_html(run, f"{run.name}: ") for run in runs)
    return (
        f"<h1>{html_text(page_title(runs))}</h1>{html_table(['run', *map(html_text, heads)], rows)}{banners}"
    )


def page_title(runs: Sequence[RunRecord]) -> str:
    """Return the names of one or two runs; of more runs, their common folder and number."""
    if len(runs) <= 2:
        return " and ".join(run.name for run in runs)
    folder = Path(commonpath([run.folder.absolute().parent for run in runs])).name
    return f"{folder}: {counted(len(runs), 'run')}"


def marked_name(run: RunRecord, number: int) -> str:
    """Render a compared run's name after a mark in its line color."""
    return f'<span class="c{number % NUM_COLORS}" aria-hidden="true">&#9632;</span> {html_text(run.name)}'


def results_html(run: RunRecord) -> str:
    """Render first, best and last value of each metric, and notes on early best values."""
    rows, notes = [], []
    for metric in run.metrics:
        if (series := run.history.series.get(metric.name)) is None:
            continue
        step, best = series.highest if metric.is_higher_better else series.lowest
        first, top, last = (
            f"{value:.2%}" if metric.is_share else show_number(value)
            for value in (series.first[1], best, series.last[1])
        )
        better = "higher is better" if metric.is_higher_better else "lower is better"
        rows.append([html_text(metric.label), first, f"{top} (step {step:,})", last, html_muted(better)])
        if step < EARLY * run.last_step and metric.note_on_early_best:
            notes.append(f'<p class="muted">{html_text(metric.note_on_early_best)}</p>')
    return html_table(["metric", "first", "best", "last", ""], rows) + "".join(notes)


def launches_html(run: RunRecord) -> str:
    """Render the table of launches with their outcomes and restarts."""
    rows = []
    for place, launch in enumerate(run.launches, 1):
        is_last = place == len(run.launches)
        outcome = run.outcome if is_last else mapping_or_empty(launch.get("outcome"))
        ended = _outcome_html(dict(outcome), is_alive=run.is_alive if is_last else False)
        argv = " ".join(["neobert-launch", *map(str, get_list(launch, "argv")[1:])])
        command = f"<code>{html_text(argv)}</code>"
        rows.append([str(place), html_time(launch.get("started_utc")), ended, command])
        for restart in get_records(launch, "restarts"):
            source = f"restart from {html_text(restart.get('from', ''))}"
            rows.append(["", html_time(restart.get("ts_utc")), source, html_text(restart.get("why", ""))])
    return html_table(["launch", "time (UTC)", "outcome", "command or reason"], rows)


def _run_heading_html(run: RunRecord) -> str:
    profile = run.last_launch.get("profile") or "no profile"
    about = f"{profile}, config {str(run.last_launch.get('config_digest', ''))[:12] or 'unknown'}"
    return f'<h1>{html_text(run.name)}</h1><p class="muted">{html_text(about)}</p>{_banners_html(run)}'


def _banners_html(run: RunRecord, start: str = "") -> str:
    return "".join(
        f'<p class="banner {kind}">{html_text(start + message)}</p>'
        for kind, message in _banner_messages(run)
    )


def _key_figures(run: RunRecord) -> Iterator[tuple[str, str]]:
    history, max_steps = run.history, run.config.get("trainer.max_steps")
    tokens = finite_number(history.last.get(TOKENS))
    seconds = history.clock.step_seconds
    pace = (tokens - history.clock.start_tokens) / seconds if tokens and seconds else None
    yield "status", str(outcome_for_state(run.outcome, run.last_launch).get("status") or _phase_text(run))
    yield "step", f"{run.last_step:,}" + (f" of {max_steps:,}" if isinstance(max_steps, int) else "")
    yield "tokens", show_count(tokens)
    yield "training loss", show_number(finite_number(history.last.get(TRAIN_LOSS)))
    if EVAL_LOSS in history.series:
        yield "evaluation loss", show_number(history.series[EVAL_LOSS].last[1])
    yield "mean throughput", "-" if pace is None else f"{show_count(pace)} tokens/s"
    yield "training time", show_duration(history.clock.elapsed_s)
    yield "sessions", _sessions_text(run)
    yield "preflight", str(run.preflight.get("verdict") or "not recorded")
    yield "cost", _cost_text(run)


def _sessions_text(run: RunRecord) -> str:
    """Return the number of sessions, which is launches plus restarts, and the number of restarts if any."""
    launches, restarts = len(run.launches), len(run.restarts())
    if not restarts:
        return str(launches)
    return f"{launches + restarts} ({counted(restarts, 'restart')})"


def _phase_text(run: RunRecord) -> str:
    beat = run.ranks[0].last if run.ranks else {}
    return f"{STATES[run.is_alive]}, last phase: {beat.get('phase', 'unknown')}"


def _cost_text(run: RunRecord) -> str:
    """Return the GPU-hours of training on all ranks, and their cost if guard.price_per_gpu_hour is set."""
    if not get_list(run.facts, "gpus"):
        return "no GPU"
    hours = run.history.clock.rank_seconds / SECONDS_PER_HOUR
    price = finite_number(run.config.get("guard.price_per_gpu_hour"))
    return f"{show_count(hours)} GPU-hours" + ("" if price is None else f" = {hours * price:,.2f}")


def _banner_messages(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each banner: error, --unguarded, warnings, data that is not shown."""
    outcome, history = run.outcome, run.history
    if error := failure_reason(outcome):
        ended = f"{outcome.get('status', 'ended')} (exit {outcome.get('exit_code', '?')})"
        hint = f"; hint: {outcome['hint']}" if outcome.get("hint") else ""
        yield "failure", f"{ended}: {error}{hint}"
    if reason := run.last_launch.get("unguarded"):
        if run.preflight.get("verdict") == "pass":
            yield "warning", f"launched with --unguarded, and all required checks passed: {reason}"
        else:
            yield "failure", f"launched although checks failed: {reason}"
    for rank in run.ranks[:1]:
        for warning in mapping_or_empty(rank.last.get("warning_messages")).values():
            yield "warning", str(warning)
    if history.num_unreadable:
        yield "warning", f"metrics.jsonl: {counted(history.num_unreadable, 'damaged line')} not shown"
    if not history.num_rows:
        yield "warning", "metrics.jsonl has no metrics yet"
    if run.num_ranks > len(run.ranks):
        yield "warning", f"memory of the first {len(run.ranks)} of {run.num_ranks} ranks is shown"


def _outcome_html(outcome: Record, *, is_alive: bool | None) -> str:
    if not outcome:
        unknown = "no outcome written (killed, or still running)"
        return {True: "running", False: "no outcome written (killed)", None: unknown}[is_alive]
    ended, step, code = (outcome.get(name, "?") for name in ("status", "step", "exit_code"))
    return html_text(f"{ended} {'after' if ended == 'failed' else 'at'} step {step}, exit {code}")
