"""A measurement as a person reads it: the arms, which is faster and how surely, what the baseline says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import fold
from launcher.terminal.numbers import UNKNOWN
from launcher.terminal.table import columns
from launcher.terminal.values import show_value
from neobert.plurals import counted
from neobert.printable import printable

HEAD = ("arm", "tokens/s", "ms a step", "data wait", "MFU of measured peak", "of nominal peak")
COLOUR = {"b is faster": "green", "b is slower": "red"}


def bench_text(report: Mapping[str, Any]) -> str:
    """Write all that a report says on a few lines."""
    said = fold("\n".join([*_comparison(report), *_baseline(report)]), console.width())
    return "\n".join([fold(_title(report), console.width()), _table(report), *([said] if said else [])])


def _title(report: Mapping[str, Any]) -> str:
    settings = report["settings"]
    documents = "made-up documents" if settings["data"] == "synthetic" else "the run's own documents"
    turns = f"{counted(settings['rounds'], 'round')} of {counted(settings['steps_per_turn'], 'step')}"
    return f"{paint(printable(report['device']), 'bold')}: {turns} behind {settings['trim']}, {documents}"


def _table(report: Mapping[str, Any]) -> str:
    rows = [_row(name, arm) for name, arm in report["arms"].items()]
    return columns([HEAD, *rows], indent="  ")


def _row(name: str, arm: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name,
        f"{arm['tokens_per_second']:,.0f}",
        f"{arm['step_ms']:.2f}",
        _share(arm["means"].get("perf/data_wait_share")),
        _share(arm["mfu_of_measured_peak"]),
        _share(arm["mfu_of_nominal_peak"]),
    )


def _comparison(report: Mapping[str, Any]) -> Iterator[str]:
    found = report["comparison"]
    if found is None:
        return
    changes = (f"{key}: {show_value(a)} -> {show_value(b)}" for key, (a, b) in report["differences"].items())
    yield printable(f"b differs in {'; '.join(changes) or 'nothing'}")
    span = f"{found['low']:.4f} to {found['high']:.4f} at {found['coverage']:.0%}"
    verdict = paint(found["verdict"], COLOUR.get(found["verdict"], "yellow"), "bold")
    yield f"{verdict}: {found['ratio']:.4f} times the tokens/s of a ({span})"


def _baseline(report: Mapping[str, Any]) -> Iterator[str]:
    found = report["baseline"]
    if found is not None:
        then, ratio = found["date_utc"], f"{found['ratio']:.4f} times the tokens/s"
        times = f"{ratio}, {found['ratio_of_mfu']:.4f} times the MFU"
        yield printable(f"a against the baseline of {then}: {times}")


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"
