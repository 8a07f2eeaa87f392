"""Points of a sweep, their predictions and results, as tables and as sweep.json."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.commands.selection import Selection
from launcher.io.files import write_text
from launcher.run.speedrun_rules import MASK_RATE, PART, evaluation_keys
from launcher.run.summary import Summary, summarize_finished_run, summarize_run
from launcher.run.sweep_points import Point
from launcher.rundir.directory import is_run_directory, run_directory
from launcher.rundir.records import read_outcome
from launcher.terminal import console
from launcher.terminal.metric_text import value_text
from launcher.terminal.table import format_columns
from launcher.terminal.values import UNKNOWN, result_json, show_count, show_duration, show_mib
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.keys import key_effect
from neobert.config.schedules import masking_rates
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_TRAINING_FAILED, ProjectError
from neobert.metric_names import EVAL_LOSS
from neobert.plan import Plan
from neobert.plan.remaining import Remaining
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.runfiles.resume_policy import Difference
from neobert.tasks.specs import is_higher_better
from profiles.registry import ResolvedRun
from validators.facts import NO_FACTS
from validators.remaining import remaining_in_launch

RESULTS = "sweep.json"
MARK = " *"
"""Mark in tables for a point whose run was begun with other settings."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point of the sweep with its resolved run, and whether an earlier command has finished it.

    Attributes:
        begun_with: settings that determine the result and differ in the checkpoints of its run directory.
    """

    point: Point
    selection: Selection
    run: ResolvedRun
    plan: Plan
    is_finished: bool
    begun_with: tuple[Difference, ...] = ()

    @property
    def folder(self) -> Path:
        """Return the run directory of this point."""
        return run_directory(self.run)

    @property
    def remaining(self) -> Remaining:
        """Return the remaining part of the run, from the step in the name of the newest checkpoint."""
        return remaining_in_launch(self.run, self.plan, NO_FACTS)

    @property
    def label(self) -> str:
        """Return the point's name in tables, with a mark if its run was begun with other settings."""
        return printable(self.point.label) + MARK * bool(self.begun_with)


@dataclass(slots=True)
class PointResult:
    """A point and its outcome.

    Attributes:
        summary: None if its trainer was not started, as after a failed preflight.
    """

    candidate: Candidate
    summary: Summary | None = None

    def metric_value(self, metric: str) -> float | None:
        """Return a metric of the last evaluation, or None if it was not measured."""
        return None if self.summary is None else self.summary.last_evaluation.get(metric)

    def as_json(self) -> dict[str, Any]:
        """Return the point, its predictions and its summary as JSON values."""
        point, plan = self.candidate.point, self.candidate.plan
        return {
            "point": point.label,
            "overrides": list(point.overrides),
            "config_hash": self.candidate.run.digest,
            "planned_tokens": plan.total_tokens.value,
            "planned_seconds": plan.eta_s.value,
            "begun_with_other_settings": [str(each) for each in self.candidate.begun_with],
            "result": None if self.summary is None else self.summary.as_json(),
        }


def collect(results: Sequence[PointResult], base: Path, output_format: str, metric: str = EVAL_LOSS) -> int:
    """Write sweep.json from the run directories and print the results; return 1 unless all points finished.

    Raises ProjectError if the folder of the sweep does not exist.
    """
    if not base.is_dir():
        hint = "submit the sweep first: neobert-launch submit --sweep"
        raise ProjectError("sweep", "no point of this sweep was started", hint, str(base), EXIT_CHECK_FAILED)
    for result in results:
        result.summary = read_summary(result.candidate)
    write_results(results, base, metric)
    print_results(results, base, output_format, metric)
    return EXIT_OK if all(each.candidate.is_finished for each in results) else EXIT_CHECK_FAILED


def write_results(results: Iterable[PointResult], base: Path, metric: str = EVAL_LOSS) -> None:
    """Write the results to sweep.json in `base`; `metric` is recorded in it as the metric to compare."""
    write_text(base / RESULTS, result_json(as_json(results, metric)))


def print_results(
    results: Sequence[PointResult], base: Path, output_format: str, metric: str = EVAL_LOSS
) -> None:
    """Print the results: as JSON, or as a table with the best value of the metric first."""
    is_json = output_format == "json"
    console.write(result_json(as_json(results, metric)) if is_json else results_table(results, base, metric))


def read_summary(candidate: Candidate) -> Summary | None:
    """Return the result of a point from its run directory, or None if it was not started."""
    if not is_run_directory(candidate.folder):
        return None
    code = read_outcome(candidate.folder).get("exit_code", EXIT_TRAINING_FAILED)
    return (
        summarize_finished_run(candidate.folder)
        if candidate.is_finished
        else summarize_run(candidate.folder, code, (), None)
    )


def as_json(results: Iterable[PointResult], metric: str = EVAL_LOSS) -> dict[str, Any]:
    """Return the content of sweep.json: the metric to compare, and the points with their results."""
    return {"metric": metric, "points": [result.as_json() for result in results]}


def predictions_with_totals(candidates: Sequence[Candidate]) -> str:
    """Format one line per point with its predicted time, memory and cost, and their totals."""
    left = [candidate.remaining for candidate in candidates if not candidate.is_finished]
    costs = [cost for rest in left if (cost := rest.cost.value) is not None]
    price = f", cost {cost_text(sum(costs))}" if left and len(costs) == len(left) else ""
    finished = f" ({len(candidates) - len(left)} finished)" if len(left) < len(candidates) else ""
    total = show_duration(sum(rest.eta_s.value for rest in left))
    return f"{predictions_table(candidates)}\n{counted(len(candidates), 'point')}{finished}, {total}{price}"


def predictions_table(candidates: Sequence[Candidate]) -> str:
    """Format one line per point with its predicted time, memory and cost."""
    rows = [["point", "tokens", "time", "memory", "cost"]]
    for candidate in candidates:
        plan, rest = candidate.plan, candidate.remaining
        rows.append(
            [
                candidate.label,
                show_count(plan.total_tokens.value),
                "finished" if candidate.is_finished else show_duration(rest.eta_s.value),
                show_mib(plan.memory_mib.value),
                cost_text(None if candidate.is_finished else rest.cost.value),
            ]
        )
    return format_columns(rows)


def results_table(results: Sequence[PointResult], base: Path, metric: str = EVAL_LOSS) -> str:
    """Format one line per point, the best by a metric first, and notes on results that are not comparable."""
    rows = [["point", "status", "step", "tokens", metric.replace("/", " ")]]
    rows += [
        _result_row(result, metric) for result in sorted(results, key=lambda each: _sort_key(each, metric))
    ]
    candidates = [result.candidate for result in results]
    notes = [*notes_on_other_settings(candidates), note_on_evaluation(candidates)]
    charts = f"charts: {shlex.join(['neobert-launch', 'report', str(base)])}"
    lines = [format_columns(rows), *notes, printable(f"results: {base / RESULTS}"), printable(charts)]
    return "\n".join(filter(None, lines))


def notes_on_other_settings(candidates: Iterable[Candidate]) -> list[str]:
    """Return one line per point whose run was begun with other settings, to be printed below a table."""
    begun = (candidate for candidate in candidates if candidate.begun_with)
    return [
        printable(
            f"{MARK.strip()} {each.point.label} was begun with other settings, and its loss is not "
            f"comparable: {settings_text(each.begun_with)}"
        )
        for each in begun
    ]


def settings_text(begun_with: Sequence[Difference]) -> str:
    """List the first three settings with which a run was begun, next to the current ones."""
    return listed([f"{each.key} {each.saved!r}, now {each.current!r}" for each in begun_with], 3)


def note_on_evaluation(candidates: Sequence[Candidate]) -> str:
    """Return a warning if the points' evaluation losses are not comparable, else an empty string."""
    if not candidates:  # a task of a search without a trial of its own
        return ""
    configs = [candidate.run.config for candidate in candidates]
    flat = [flatten(to_dict(config)) for config in configs]
    section = f"{configs[0].task}."
    of_task = {name for name in flat[0] if name.startswith(section) and key_effect(name) == "data"}
    names = {*evaluation_keys(), PART, *of_task} - {MASK_RATE}
    differing = sorted(name for name in names if any(each[name] != flat[0][name] for each in flat))
    hint = ""
    if len({masking_rates(config.datacollator).evaluation for config in configs}) > 1:
        differing.append("datacollator.mlm_probability")
        hint = f"\n  = hint: set {MASK_RATE} to evaluate all points at one rate"
    if not differing:
        return ""
    keys = listed(differing, 3)
    return f"warning: evaluation losses are not comparable: the points differ in {keys}{hint}"


def _sort_key(result: PointResult, metric: str) -> tuple[bool, float]:
    value = result.metric_value(metric)
    sign = -1 if is_higher_better(result.candidate.run.config.trainer, metric) else 1
    return (value is None, sign * (value or 0.0))


def _result_row(result: PointResult, metric: str) -> list[str]:
    label, summary, value = result.candidate.label, result.summary, result.metric_value(metric)
    if summary is None:
        return [label, "not run", UNKNOWN, UNKNOWN, UNKNOWN]
    shown = UNKNOWN if value is None else value_text(metric, value)
    return [label, summary.status, str(summary.step), show_count(summary.tokens_total), shown]


def cost_text(cost: float | None) -> str:
    """Format a cost with two decimals; None as `-`."""
    return UNKNOWN if cost is None else f"{cost:.2f}"
