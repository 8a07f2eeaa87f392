"""Terminal view of a run: curves, progress, memory and alerts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import quantiles

from launcher.rundir.live_state import gates_text, memory_mib, phase_text
from launcher.rundir.records import Record
from launcher.rundir.run_history import Series
from launcher.rundir.run_reader import RankView, Snapshot
from launcher.rundir.run_status import STATE_COLOURS, best_text, selecting_metric
from launcher.rundir.stalls import MISSED_BEATS
from launcher.terminal.console import paint
from launcher.terminal.fold import ELLIPSIS, cut_end, cut_start, display_width, fold
from launcher.terminal.metric_text import is_share, metric_label, short_value_text
from launcher.terminal.values import UNKNOWN, show_age, show_count, show_duration, show_mib, show_number
from neobert.metric_names import EVAL_LOSS, PACE, TRAIN_LOSS
from neobert.plurals import counted
from neobert.printable import printable

LABEL_WIDTH, VALUE_WIDTH, RANGE_WIDTH = 10, 10, 22
MIN_CURVE_WIDTH = 10
"""Minimum width of a curve in columns; if there is less room, the range of its values is omitted."""
MAX_RANKS = 8
BETWEEN = "  "
ALERT_ROWS, CHART_ROWS = 8, 12
"""Maximum number of rows for alerts, and for all charts on a small terminal."""

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " ._-=+*%#"
CLIPPED_SHARE = 50
"""The scale omits 1/50 of the values at either end, because a high initial loss would flatten the rest."""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Size of a terminal in characters, and whether it can display block characters."""

    width: int
    height: int
    is_unicode: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve with its label and the format of its values."""

    label: str
    show: Callable[[float], str]
    series: Series


def page_lines(snapshot: Snapshot, terminal: TerminalSize) -> list[str]:
    """Return the lines of the page, cut to the width and height of the terminal."""
    top = [*_head_lines(snapshot, terminal), ""]
    below = [
        "",
        *_fact_lines(snapshot, terminal.width),
        *_guess_lines(snapshot, terminal.width),
        "",
        *_rank_lines(snapshot, terminal),
    ]
    alerts = [line for each in _alerts(snapshot) for line in fold(f"! {each}", terminal.width).splitlines()]
    room = terminal.height - len(top) - len(below) - (min(ALERT_ROWS, len(alerts) + 2) if alerts else 0)
    charts = _charts(snapshot)
    heights = _chart_heights(len(charts), min(room, max(CHART_ROWS, terminal.height // 2)))
    drawn = [
        line
        for chart, height in zip(charts, heights, strict=True)
        for line in _draw_chart(chart, height, terminal, snapshot.history.last)
    ]
    lines = [*top, *drawn, *below]
    left = terminal.height - len(lines) - 1
    if alerts and left > 0:
        lines += ["", *_first_alerts(alerts, left, terminal.width)]
    mark = ELLIPSIS if terminal.is_unicode else "~"
    return [line.replace(ELLIPSIS, mark) for line in lines[: terminal.height]]


def _chart_heights(number: int, room: int) -> list[int]:
    """Return the heights of `number` charts that share `room` rows.

    Each has one row; of the spare rows the first chart gets 2/3 and the second one 1/3.
    """
    if not number:
        return []
    spare = max(0, room - number)
    first, second = spare - spare // 3, spare // 3
    return [1 + first, *([1 + second] if number > 1 else []), *[1] * (number - 2)]


def _head_lines(snapshot: Snapshot, terminal: TerminalSize) -> Iterator[str]:
    status = snapshot.status
    state = status.state if status.state != "running" else f"running: {phase_text(snapshot.beat)}"
    if status.state == "died":
        state = status.phase
    colour = STATE_COLOURS.get(status.state, "yellow")
    state = cut_end(printable(state), terminal.width)
    name = cut_start(printable(status.run), terminal.width - display_width(state) - len(BETWEEN))
    gap = " " * (terminal.width - display_width(name) - display_width(state))
    yield f"{paint(name, 'bold')}{gap}{paint(state, colour, 'bold')}"
    yield _progress_bar(snapshot, terminal)


def _progress_bar(snapshot: Snapshot, terminal: TerminalSize) -> str:
    status = snapshot.status
    most = status.max_steps
    share = min(1.0, status.step / most) if most else 0.0
    fields = [f"step {status.step:,}/{most:,}" if most else f"step {status.step:,}", f"{share:.0%}"]
    fields += [f"elapsed {show_duration(_elapsed_s(snapshot))}"]
    if status.eta_s is not None:
        fields.append(f"ETA {show_duration(status.eta_s)}")
    text = BETWEEN.join(fields if most else [fields[0], *fields[2:]])
    room = terminal.width - len(text) - 2
    if room < 8:
        return cut_end(text, terminal.width)
    full, empty = ("█", "░") if terminal.is_unicode else ("#", ".")
    filled = round(share * room)
    return f"{paint(full * filled, 'cyan')}{paint(empty * (room - filled), 'dim')}  {text}"


def _elapsed_s(snapshot: Snapshot) -> float | None:
    """Return the seconds from launch to now, or to the last heartbeat of an ended run; None if unknown."""
    if snapshot.started is None:
        return None
    end = datetime.now(UTC)
    if snapshot.status.is_alive is False:
        try:
            end = datetime.fromisoformat(str(snapshot.beat["ts_utc"]))
        except (KeyError, ValueError):
            return None
    try:
        return max(0.0, (end - snapshot.started).total_seconds())
    except TypeError:
        return None


def _charts(snapshot: Snapshot) -> list[Chart]:
    """Return the charts: training loss, throughput, and up to three evaluation metrics that have values."""
    history = snapshot.history
    names = [EVAL_LOSS]
    if (selecting := selecting_metric(snapshot.config)) is not None:
        names.append(selecting[0].name)
    names += [name for name in snapshot.status.evaluation if is_share(name)]
    charts = [
        Chart("loss", show_number, history.metric(TRAIN_LOSS)),
        Chart("tokens/s", show_count, history.metric(PACE)),
    ]
    for name in list(dict.fromkeys(names))[:3]:
        series = history.metric(name)
        if series.values:
            charts.append(Chart(metric_label(name), partial(short_value_text, name), series))
    return charts


def _last_value(series: Series) -> float | None:
    return series.values[-1] if series.values else None


def _draw_chart(chart: Chart, height: int, terminal: TerminalSize, last: int) -> Iterator[str]:
    """Yield the rows of a chart over steps 0 to `last`: label and newest value, curve, range of values."""
    room = terminal.width - LABEL_WIDTH - VALUE_WIDTH
    has_range = room >= MIN_CURVE_WIDTH + RANGE_WIDTH
    width = max(0, room - RANGE_WIDTH if has_range else room)
    series = chart.series
    values = bucket_means(series.positions, series.values, width, last)
    rows = draw_columns(values, height, is_unicode=terminal.is_unicode)
    newest = _short_value(chart, series.values[-1]) if series.values else UNKNOWN
    text = f"{cut_end(chart.label, LABEL_WIDTH):<{LABEL_WIDTH}}{newest:>{VALUE_WIDTH - 2}}  "
    ends = (
        [_short_value(chart, end(series.values)) for end in (min, max)] if series.values and has_range else []
    )
    spread = " to ".join(ends) if len(set(ends)) == 2 else ""
    for number, row in enumerate(rows):
        is_last = number == len(rows) - 1
        left = text if is_last else " " * len(text)
        right = f"  {spread}" if is_last and spread else ""
        yield cut_end(left, terminal.width) + paint(row.ljust(width), "cyan") + right


def _short_value(chart: Chart, value: float) -> str:
    """Format a value in the width of its column: 5.123, 0.0023, 4.0e-04."""
    text = chart.show(value)
    return text if len(text) <= VALUE_WIDTH - 2 else f"{value:.1e}"


def _fact_lines(snapshot: Snapshot, width: int) -> list[str]:
    beat, status = snapshot.beat, snapshot.status
    wait_ms, rate = beat.get("data_wait_ms"), _last_value(snapshot.history.metric(PACE))
    mfu = beat.get("mfu")
    fields = [
        f"learning rate {show_number(beat.get('learning_rate'), 3)}",
        f"gradient norm {show_number(beat.get('grad_norm'), 3)}",
        f"data wait {UNKNOWN if wait_ms is None else f'{wait_ms:.1f} ms'}",
        *([] if mfu is None else [f"MFU {mfu:.1%}"]),
    ]
    saved = beat.get("last_checkpoint_step")
    minutes = status.minutes_at_risk
    since = "" if minutes is None else f", {show_duration(60 * minutes)} {_heartbeat_age_text(snapshot)}"
    checkpoint = "none yet" if saved is None else f"step {saved:,}{since}"
    more = [
        f"checkpoint {checkpoint}",
        f"best {best_text(status.best)}",
        f"tokens {show_count(status.tokens_total)}",
        *([] if rate is None or not status.restarts else [f"restarts {status.restarts}"]),
        *([gates] if (gates := gates_text(beat)) else []),
    ]
    lines = "\n".join(printable(BETWEEN.join(each)) for each in (fields, more))
    return [cut_end(line, width) for line in fold(lines, width, BETWEEN).split("\n")]


def _guess_lines(snapshot: Snapshot, width: int) -> Iterator[str]:
    """Yield a line with the newest guesses at a masked word and as much of its text as fits, or no line."""
    samples = snapshot.samples
    if not samples.evaluations:
        return
    text, guesses = samples.texts[0], samples.evaluations[-1].guesses[0]
    best = ", ".join(f'"{guess.text}" {guess.probability:.0%}' for guess in guesses)
    middle, end = printable(f" [{text.word}] "), printable(f": {best}")
    room = max(0, width - LABEL_WIDTH - display_width(middle) - display_width(end)) // 2
    around = cut_start(printable(text.before), room) + middle + cut_end(printable(text.after), room)
    yield cut_end(f"{'masked':<{LABEL_WIDTH}}{around}{end}", width)


def _heartbeat_age_text(snapshot: Snapshot) -> str:
    return "before the end" if snapshot.status.is_alive is False and snapshot.is_over else "ago"


def _rank_lines(snapshot: Snapshot, terminal: TerminalSize) -> Iterator[str]:
    """Yield one line per rank; of many ranks, the ones at the lowest steps, and a summary of the others."""
    shown = sorted(snapshot.ranks.items(), key=_slowest_first)
    most = max(1, min(MAX_RANKS, terminal.height - 16))
    listed = sorted(shown if len(shown) <= most else shown[: most - 1])
    for rank, view in listed:
        yield _rank_text(rank, view, terminal.width)
    if len(shown) > most:
        memories = [each for _, view in shown if (each := memory_mib(view.beat)) is not None]
        spread = f", memory {show_mib(min(memories))} to {show_mib(max(memories))}" if memories else ""
        yield cut_end(f"{counted(len(shown) - len(listed), 'more rank')}{spread}", terminal.width)


def _slowest_first(item: tuple[int, RankView]) -> tuple[float, float, int]:
    rank, view = item
    return view.beat.get("step") or 0, -(view.age_s or 0.0), rank


def _rank_text(rank: int, view: RankView, width: int) -> str:
    """Format the state of a rank; if it is too wide, without memory, then without heartbeat age."""
    beat = view.beat
    step = beat.get("step")
    total = beat.get("gpu_mem_total_mib")
    memory = memory_mib(beat)
    text = "" if memory is None else f"memory {show_mib(memory)}"
    share = f" ({memory / total:.0%})" if memory is not None and total else ""
    place = "" if beat.get("gpu_mem_reserved_mib") is not None else " (process)"
    age = "no heartbeat" if view.age_s is None else f"heartbeat {show_age(view.age_s)} ago"
    doing = beat.get("phase_doing") or f"step {UNKNOWN if step is None else f'{step:,}'}"
    start = printable(f"rank {rank:<3} {phase_text(beat):<10}{BETWEEN}{doing}")
    choices = ((f"{text}{share or place}", age), (text, age), (age,)) if text else ((age,),)
    lines = (BETWEEN.join([start, *fields]) for fields in choices)
    return next((line for line in lines if display_width(line) <= width), cut_end(start, width))


def _alerts(snapshot: Snapshot) -> list[str]:
    """Return the alerts: final error, silent ranks, restarts and warnings of the trainer, in this order."""
    hint = f"hint: {snapshot.hint}" if snapshot.hint else ""
    alerts = [text for text in (snapshot.message, hint) if text]
    alerts += [f"rank {rank}: no heartbeat for {show_duration(age)}" for rank, age in _silent_ranks(snapshot)]
    alerts += _restart_lines(snapshot.restarts)
    messages = snapshot.beat.get("warning_messages") or {}
    counts = snapshot.beat.get("warnings") or {}
    alerts += [f"{message}{_repetition_text(counts.get(name, 1))}" for name, message in messages.items()]
    return [printable(alert) for alert in alerts]


def _restart_lines(entries: Sequence[Record]) -> Iterator[str]:
    """Yield one line per distinct restart, newest first, with its newest time and its count."""
    texts = [f"restarted from {entry.get('from', UNKNOWN)}: {entry.get('why', UNKNOWN)}" for entry in entries]
    newest = dict(zip(texts, entries, strict=True))
    for text in dict.fromkeys(reversed(texts)):
        time = str(newest[text].get("ts_utc", ""))[11:16]
        yield f"{time} {text}{_repetition_text(texts.count(text))}"


def _repetition_text(number: float) -> str:
    return f" ({number:g} times)" if number > 1 else ""


def _silent_ranks(snapshot: Snapshot) -> Iterator[tuple[int, float]]:
    if snapshot.status.state not in ("running", "silent"):
        return
    section = snapshot.config.get("watchdog")
    interval = section.get("heartbeat_interval_s") if isinstance(section, dict) else None
    limit_s = MISSED_BEATS * (interval if isinstance(interval, int | float) else 10.0)
    for rank, view in snapshot.ranks.items():
        if view.age_s is not None and view.age_s > limit_s:
            yield rank, view.age_s


def _first_alerts(alerts: Sequence[str], room: int, width: int) -> list[str]:
    """Return at most `room` lines of folded alerts; if some do not fit, the last line names the logs."""
    if len(alerts) > room:
        alerts = [*alerts[: room - 1], "! and more: see logs/ and manifest.json in the run directory"]
    return [paint(cut_end(line, width), "yellow") for line in alerts]


def draw_columns(values: Sequence[float | None], height: int, *, is_unicode: bool) -> list[str]:
    """Draw one column per value, `height` rows from top to bottom; a column without a value stays blank."""
    levels = BLOCKS if is_unicode else ASCII
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return [" " * len(values)] * height
    low, high = _value_range(finite)
    most = 8 * height - 1
    filled = [None if value is None else _column_height(value, low, high, most) for value in values]
    return [
        "".join(" " if level is None else levels[min(8, max(0, level - 8 * row))] for level in filled)
        for row in reversed(range(height))
    ]


def _value_range(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < CLIPPED_SHARE:
        return min(values), max(values)
    cuts = quantiles(values, n=CLIPPED_SHARE)
    return cuts[0], cuts[-1]


def _column_height(value: float, low: float, high: float, most: int) -> int:
    """Return the height of a value in eighths of a row, from 1 to most + 1, which NaN and infinity get."""
    if not math.isfinite(value):
        return most + 1
    share = (value - low) / (high - low) if high > low else 0.0
    return 1 + round(min(1.0, max(0.0, share)) * most)


def bucket_means(
    positions: Sequence[int], values: Sequence[float], width: int, last: int
) -> list[float | None]:
    """Return the mean of the values in each of `width` equal ranges of [0, last]; positions ascend.

    A range without values repeats the previous mean; it is None before the first value and after the last.
    """
    means: list[float | None] = []
    start = 0
    for column in range(1, width + 1):
        limit = last * column / width
        end = bisect_right(positions, limit, lo=start)
        chunk = values[start:end]
        if chunk:
            means.append(sum(chunk) / len(chunk))
        else:
            means.append(means[-1] if means and end < len(positions) else None)
        start = end
    return means
