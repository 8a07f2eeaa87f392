"""`bench`: throughput of a run, or comparison of two configs, measured in child processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import Selection, hide_gpus_from_cpu_run
from launcher.io.files import RUN_FILE_SUFFIXES, require_writable, write_text
from launcher.process.json_child import run_json_child
from launcher.report.formats.text import finding_text
from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import fold
from launcher.terminal.table import format_columns
from launcher.terminal.values import UNKNOWN, result_json, show_value
from neobert.bench.request import Data, Request
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.keys import without_effects
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import counted
from neobert.printable import printable
from neobert.schema_fields import Effect
from profiles.registry import ResolvedRun
from validators.core import judge
from validators.finding import Level, Severity
from validators.planning import plan_run

MODULE = "neobert.bench"
HINT = "see the output above"
A, B = "a", "b"
WITHOUT_EFFECT: tuple[Effect, ...] = ("reporting", "limits", "start")  # no measured step depends on these
Differences = dict[str, tuple[Any, Any]]
HEAD = ("arm", "tokens/s", "ms/step", "data wait", "host-bound", "MFU (measured)", "MFU (nominal)")
"""Column heads; the two MFU are relative to the measured peak FLOP/s and to the data sheet's."""
COLOUR = {"b is faster": "green", "b is slower": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArguments:
    """Arguments of `bench`.

    Attributes:
        against: profile or run file of arm b; None uses arm a's.
        b_overrides: overrides of arm b only, applied after the overrides of both arms.
        differing: keys or sections that may differ, in addition to the keys of `b_overrides`.
        steps: measured steps per arm and round.
        trim: warm-up steps that are not measured.
    """

    selection: Selection
    against: str | None
    b_overrides: tuple[str, ...]
    differing: tuple[str, ...]
    steps: int
    trim: int
    rounds: int
    data: Data
    baseline: Path | None
    output: Path | None


def run(arguments: BenchArguments, output_format: str) -> int:
    """Measure one or two arms in a child process, print the report, and save it if requested."""
    arms = resolve_arms(arguments)
    differences = differences_between(list(arms.values()))
    refuse_undeclared_differences(arguments, differences)
    for name, resolved in arms.items():
        require_single_process(resolved)
        hide_gpus_from_cpu_run(resolved)
        log_failed_checks(name, resolved)
    require_writable(arguments.output)
    request = Request(
        arms={name: to_dict(resolved.config) for name, resolved in arms.items()},
        digests={name: resolved.digest for name, resolved in arms.items()},
        differences=differences,
        steps=arguments.steps,
        trim=arguments.trim,
        rounds=arguments.rounds,
        data=arguments.data,
        baseline=None if arguments.baseline is None else read_report(arguments.baseline),
    )
    report = run_json_child(MODULE, request.as_json(), doing="measuring", hint=HINT)
    text = result_json(report)
    if arguments.output is not None:
        write_text(arguments.output, text + "\n")
    console.write(text if output_format == "json" else bench_text(report))
    return EXIT_OK


def resolve_arms(arguments: BenchArguments) -> dict[str, ResolvedRun]:
    """Resolve arm a's config, and arm b's if --against or --b-set is given."""
    first = arguments.selection
    arms = {A: first.require()}
    if arguments.against is None and not arguments.b_overrides:
        return arms
    profile, files = first.profile, first.files
    if arguments.against is not None:
        is_file = arguments.against.lower().endswith(RUN_FILE_SUFFIXES)
        profile, files = (None, (Path(arguments.against),)) if is_file else (arguments.against, ())
    return arms | {B: Selection(profile, files, (*first.overrides, *arguments.b_overrides)).require()}


def differences_between(arms: list[ResolvedRun]) -> Differences:
    """Return the values of both arms for each key that differs and affects a step; empty for a single arm."""
    first, second = (
        without_effects(flatten(to_dict(arm.config)), WITHOUT_EFFECT) for arm in (arms[0], arms[-1])
    )
    keys = sorted({*first, *second})
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def refuse_undeclared_differences(
    arguments: BenchArguments, differences: Mapping[str, tuple[Any, Any]]
) -> None:
    """Raise `ProjectError` if the arms differ in an undeclared key, or if --b-set changes nothing."""
    overridden = [override.partition("=")[0].strip() for override in arguments.b_overrides]
    unnamed = [key for key in differences if not _is_declared(key, (*overridden, *arguments.differing))]
    if unnamed:
        values = "; ".join(f"{key}: {' and '.join(map(show_value, differences[key]))}" for key in unnamed)
        raise ProjectError(
            "bench-unnamed-difference",
            f"the two configs differ in keys that --differing does not name: {values}",
            f"set the same values in both configs, or add --differing {','.join(unnamed)}",
            exit_code=EXIT_USAGE,
        )
    idle = [key for key in overridden if arguments.against is None and key not in differences]
    if idle:
        raise ProjectError(
            "bench-no-difference",
            f"--b-set changes nothing that affects a step: {', '.join(idle)}",
            "set another value with --b-set; to compare two equal arms, pass the same profile to --against",
            exit_code=EXIT_USAGE,
        )


def require_single_process(resolved: ResolvedRun) -> None:
    """Raise `ProjectError` for a run with several processes, because each arm is measured in one."""
    distributed = resolved.config.distributed
    if distributed.nproc_per_node * distributed.nnodes > 1:
        raise ProjectError(
            "bench-processes",
            f"the run has {distributed.nproc_per_node} x {distributed.nnodes} processes; bench measures one",
            "add --set distributed.nproc_per_node=1 --set distributed.nnodes=1",
            "distributed",
            EXIT_USAGE,
        )


def log_failed_checks(name: str, resolved: ResolvedRun) -> None:
    """Log the failed static checks of an arm, which do not stop the measurement."""
    findings, _ = judge(resolved, plan_run(resolved), levels=(Level.STATIC,))
    for finding in findings:
        if finding.severity is Severity.FAIL and not finding.waived:
            console.log(f"arm {name}: {finding_text(finding)}")


def read_report(path: Path) -> dict[str, Any]:
    """Read a saved report of `bench`. Raises `ProjectError` if the file is not such a report."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        is_report = report["kind"] == "neobert-bench" and report["version"] == 1
    except (OSError, ValueError, KeyError, TypeError):
        is_report = False
    if not is_report:
        message, hint = (
            "the file is not a report of `neobert-launch bench`",
            "write one with `neobert-launch bench --output FILE`",
        )
        raise ProjectError("bench-baseline", message, hint, str(path), EXIT_USAGE)
    return dict(report)


def _is_declared(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def bench_text(report: Mapping[str, Any]) -> str:
    """Format a report of `bench` as text for the terminal."""
    title, table = (
        fold(_report_title(report), console.terminal_width()),
        [_arm_row(*arm) for arm in report["arms"].items()],
    )
    summary = fold(
        "\n".join([*_comparison_lines(report), *_baseline_lines(report)]), console.terminal_width()
    )
    return "\n".join([title, format_columns([HEAD, *table], indent="  "), *([summary] if summary else [])])


def _report_title(report: Mapping[str, Any]) -> str:
    settings = report["settings"]
    documents = "synthetic documents" if settings["data"] == "synthetic" else "the run's own documents"
    turns = f"{counted(settings['rounds'], 'round')} of {counted(settings['steps_per_turn'], 'step')}"
    after = counted(settings["trim"], "warm-up step")
    return f"{paint(printable(report['device']), 'bold')}: {turns} after {after}, {documents}"


def _arm_row(name: str, arm: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name,
        f"{arm['tokens_per_second']:,.0f}",
        f"{arm['step_ms']:.2f}",
        _percent_or_unknown(arm["means"].get("perf/data_wait_share")),
        _percent_or_unknown(arm["means"].get("perf/host_bound_share")),
        _percent_or_unknown(arm["mfu_of_measured_peak"]),
        _percent_or_unknown(arm["mfu_of_nominal_peak"]),
    )


def _comparison_lines(report: Mapping[str, Any]) -> Iterator[str]:
    comparison = report["comparison"]
    if comparison is None:
        return
    changes = (f"{key}: {show_value(a)} -> {show_value(b)}" for key, (a, b) in report["differences"].items())
    yield printable(f"b differs in {'; '.join(changes) or 'nothing'}")
    bounds = f"{comparison['low']:.4f} to {comparison['high']:.4f}"
    span = f"{comparison['coverage']:.0%} confidence interval: {bounds}"
    verdict = paint(comparison["verdict"], COLOUR.get(comparison["verdict"], "yellow"), "bold")
    yield f"{verdict}: {comparison['ratio']:.4f} times the tokens/s of a ({span})"


def _baseline_lines(report: Mapping[str, Any]) -> Iterator[str]:
    baseline = report["baseline"]
    if baseline is not None:
        then, ratio = baseline["date_utc"], f"{baseline['ratio']:.4f} times the tokens/s"
        times = f"{ratio}, {baseline['ratio_of_mfu']:.4f} times the MFU"
        yield printable(f"a relative to the baseline of {then}: {times}")


def _percent_or_unknown(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"
