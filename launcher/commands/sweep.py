"""`train --sweep`: check all points and print their predicted cost, then train them one by one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.commands import train
from launcher.commands.selection import Selection
from launcher.io.files import make_folder, write_text
from launcher.preflight.examination import judge_dry_run
from launcher.preflight.hub_weights import require_downloaded
from launcher.report.formats.text import render
from launcher.run.next_command import resume_command
from launcher.run.speedrun_rules import MASK_RATE, PART, evaluation_keys
from launcher.run.summary import Summary, already_finished, conclude
from launcher.run.sweep_points import Point, expand, parse_axes
from launcher.rundir.begun_otherwise import settings_begun_with
from launcher.rundir.directory import is_finished, run_directory
from launcher.rundir.records import stamp
from launcher.terminal import console
from launcher.terminal.table import columns
from launcher.terminal.values import UNKNOWN, result_json, show_count, show_duration, show_mib
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.overrides import text_override
from neobert.config.schedules import masking_rates
from neobert.errors import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_USAGE,
    ProjectError,
)
from neobert.plan import Plan
from neobert.plan.remaining import Remaining
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.runfiles.resume_policy import Difference
from neobert.runfiles.run_dir import MANIFEST
from profiles.registry import ResolvedRun
from validators.facts import NO_FACTS
from validators.planning import plan_run
from validators.remaining import remaining_of

RESULTS = "sweep.json"
MARK = " *"
"""Mark in tables of a point whose run was begun with other settings."""
STOPPED = (EXIT_PREEMPTED, EXIT_INTERRUPTED)


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
    def left(self) -> Remaining:
        """Return the remaining part of the run, from the step in the name of the newest checkpoint."""
        return remaining_of(self.run, self.plan, NO_FACTS)

    @property
    def label(self) -> str:
        """Return the point's name in tables, with a mark if its run was begun with other settings."""
        return printable(self.point.label) + MARK * bool(self.begun_with)


@dataclass(slots=True)
class Result:
    """A point and its outcome.

    Attributes:
        summary: None if its trainer was not started, as after a failed preflight.
    """

    candidate: Candidate
    summary: Summary | None = None

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


def run(
    request: train.Request, sweeps: Sequence[str], output_format: str, *, allows_unequal_tokens: bool
) -> int:
    """Check every point, then train one after another; return the first exit code that is not 0.

    The sweep continues after a failed point, and ends if it is interrupted or preempted. The same command
    resumes it.
    """
    points = expand(parse_axes(sweeps))
    if request.receipt is not None:
        message = "a receipt covers one run, and --sweep trains several"
        raise ProjectError("sweep", message, "leave out --receipt", "--receipt", EXIT_USAGE)
    resolved = request.selection.require()
    require_downloaded(resolved.config)
    base = run_directory(resolved)
    candidates = [candidate_of(request.selection, point, base) for point in points]
    if not allows_unequal_tokens:
        _refuse_unequal_tokens(candidates)
        _refuse_begun_otherwise(candidates)
    if (code := check(request, candidates, output_format)) != EXIT_OK or request.dry_run:
        return code
    return _train_all(request, candidates, base, output_format)


def check(request: train.Request, candidates: Sequence[Candidate], output_format: str) -> int:
    """Print all points with their predicted cost, check each, return the first exit code that is not 0.

    With JSON output the points are printed only if none is trained: else the results are the one object.
    """
    if any(candidate.run.config.distributed.nnodes > 1 for candidate in candidates):
        message = "distributed.nnodes exceeds 1, but a sweep runs on one node"
        raise ProjectError("sweep", message, "launch the points one at a time", exit_code=EXIT_USAGE)
    if output_format == "text":
        console.write("\n".join([_listing(candidates), *_notes_on_begun_otherwise(candidates)]))
    if note := _note_on_evaluation(candidates):
        console.tell(note)
    code = _judge(request, candidates)
    if output_format == "json" and (code != EXIT_OK or request.dry_run):
        results = [
            Result(each, already_finished(each.folder) if each.is_finished else None) for each in candidates
        ]
        console.write(result_json(_as_json(results)))
    return code


def candidate_of(selection: Selection, point: Point, base: Path) -> Candidate:
    """Resolve the run of a point. It resumes by default, so that the same command completes a sweep."""
    own = [
        "trainer.resume_from_checkpoint=auto",
        *selection.overrides,
        *point.overrides,
        text_override("trainer.output_dir", str(base / point.folder)),
    ]
    chosen = replace(selection, overrides=tuple(own))
    resolved = chosen.resolve()
    folder = run_directory(resolved)
    is_over, begun_with = is_finished(resolved, folder), settings_begun_with(resolved, folder)
    return Candidate(point, chosen, resolved, plan_run(resolved), is_over, begun_with)


def _refuse_unequal_tokens(candidates: Sequence[Candidate]) -> None:
    """Raise ProjectError if points train on different numbers of tokens: losses are not comparable then."""
    seen = {candidate.plan.total_tokens.value: candidate.point.label for candidate in candidates}
    if len(seen) > 1:
        listed = ", ".join(f"{tokens:,} ({label})" for tokens, label in sorted(seen.items()))
        raise ProjectError(
            "sweep-tokens",
            f"the points train on unequal numbers of tokens: {listed}",
            "adjust trainer.max_steps to the batch size of each point, or add --allow-unequal-tokens",
            exit_code=EXIT_CHECK_FAILED,
        )


def _refuse_begun_otherwise(candidates: Sequence[Candidate]) -> None:
    """Raise ProjectError if points would resume, or have finished, runs that were begun with other settings.

    Such a run has the schedule of both settings: its loss is not that of the point.
    """
    begun = [candidate for candidate in candidates if candidate.begun_with]
    if begun:
        points = "; ".join(f"{each.point.label} ({_settings(each.begun_with)})" for each in begun)
        folders = listed([shlex.quote(str(each.folder)) for each in begun], 3)
        raise ProjectError(
            "sweep-begun-otherwise",
            f"the run directories of these points contain runs with other settings: {points}",
            f"set another trainer.output_dir, remove {folders}, or add --allow-unequal-tokens to resume them",
            exit_code=EXIT_CHECK_FAILED,
        )


def _notes_on_begun_otherwise(candidates: Iterable[Candidate]) -> list[str]:
    """Return one line per point whose run was begun with other settings, to be printed below a table."""
    begun = (candidate for candidate in candidates if candidate.begun_with)
    return [
        printable(
            f"{MARK.strip()} {each.point.label} was begun with other settings, and its loss is not "
            f"comparable: {_settings(each.begun_with)}"
        )
        for each in begun
    ]


def _settings(begun_with: Sequence[Difference]) -> str:
    return listed([f"{each.key} {each.saved!r}, now {each.current!r}" for each in begun_with], 3)


def _note_on_evaluation(candidates: Sequence[Candidate]) -> str:
    """Return a warning if the points are not evaluated alike, so that their losses do not rank them."""
    configs = [candidate.run.config for candidate in candidates]
    flat = [flatten(to_dict(config)) for config in configs]
    names = {*evaluation_keys(), PART} - {MASK_RATE}
    differing = sorted(name for name in names if any(each[name] != flat[0][name] for each in flat))
    hint = ""
    if len({masking_rates(config.datacollator).evaluation for config in configs}) > 1:
        differing.append("datacollator.mlm_probability")
        hint = f"\n  = hint: set {MASK_RATE} to evaluate all points at one rate"
    if not differing:
        return ""
    keys = listed(differing, 3)
    return f"warning: evaluation losses are not comparable: the points differ in {keys}{hint}"


def _listing(candidates: Sequence[Candidate]) -> str:
    rows = [["point", "tokens", "time", "memory", "cost"]]
    for candidate in candidates:
        plan, rest = candidate.plan, candidate.left
        rows.append(
            [
                candidate.label,
                show_count(plan.total_tokens.value),
                "finished" if candidate.is_finished else show_duration(rest.eta_s.value),
                show_mib(plan.memory_mib.value),
                _cost(None if candidate.is_finished else rest.cost.value),
            ]
        )
    left = [candidate.left for candidate in candidates if not candidate.is_finished]
    costs = [cost for rest in left if (cost := rest.cost.value) is not None]
    price = f", cost {_cost(sum(costs))}" if left and len(costs) == len(left) else ""
    finished = f" ({len(candidates) - len(left)} finished)" if len(left) < len(candidates) else ""
    total = show_duration(sum(rest.eta_s.value for rest in left))
    return f"{columns(rows)}\n{counted(len(candidates), 'point')}{finished}, {total}{price}"


def _cost(cost: float | None) -> str:
    return UNKNOWN if cost is None else f"{cost:.2f}"


def _judge(request: train.Request, candidates: Sequence[Candidate]) -> int:
    """Run the checks of a dry run for every unfinished point.

    Prints all findings of a failed point, and each warning at the first point that has it.
    """
    code, shown = EXIT_OK, set[tuple[str, str]]()
    for candidate in candidates:
        if candidate.is_finished:
            continue
        report = judge_dry_run(candidate.run, candidate.folder, leads=True, strict=request.strict)
        if report.exit_code != EXIT_OK and not request.unguarded:
            console.tell(f"{printable(candidate.point.label)}\n{render(report)}")
            code = code or report.exit_code
        elif new := [each for each in report.findings if (each.code, each.message) not in shown]:
            findings = render(report._replace(findings=tuple(new)), quiet=True)
            console.tell(f"{printable(candidate.point.label)}\n{findings}")
        shown.update((each.code, each.message) for each in report.findings)
    if code != EXIT_OK:
        console.tell("a point fails its checks: nothing was started or written")
    return code


def _train_all(
    request: train.Request, candidates: Sequence[Candidate], base: Path, output_format: str
) -> int:
    results = [Result(candidate) for candidate in candidates]
    make_folder(base)
    code = EXIT_OK
    for number, result in enumerate(results, start=1):
        console.tell(printable(f"point {number} of {len(results)}: {result.candidate.point.label}"))
        folder = result.candidate.folder
        before = stamp(folder / MANIFEST)
        ended = train_point(replace(request, selection=result.candidate.selection), output_format)
        # The files of a point that was refused are those of an earlier launch, if there are any.
        if ended == EXIT_OK or stamp(folder / MANIFEST) != before:
            result.summary = conclude(folder, ended, (), None)
        code = code or ended
        write_text(base / RESULTS, result_json(_as_json(results)))
        if ended in STOPPED:
            console.tell(f"the sweep was stopped; continue it with: {resume_command(has_checkpoint=True)}")
            break
    console.write(result_json(_as_json(results)) if output_format == "json" else _table(results, base))
    return code


def train_point(request: train.Request, output_format: str) -> int:
    """Train one point and return its exit code; with JSON output, its summary goes to standard error."""
    try:
        if output_format == "text":
            return train.run(request, "text")
        with redirect_stdout(sys.stderr):
            return train.run(request, "text")
    except ProjectError as error:
        if error.exit_code in STOPPED:
            raise
        console.tell(console.describe_error(error))
        return error.exit_code


def _as_json(results: Iterable[Result]) -> dict[str, Any]:
    return {"points": [result.as_json() for result in results]}


def _table(results: Sequence[Result], base: Path) -> str:
    """Format one line per point, the lowest evaluation loss first."""
    rows = [["point", "status", "step", "tokens", "eval loss"]]
    rows += [_row(result) for result in sorted(results, key=_rank)]
    candidates = [result.candidate for result in results]
    notes = [*_notes_on_begun_otherwise(candidates), _note_on_evaluation(candidates)]
    charts = f"charts: {shlex.join(['neobert-launch', 'report', str(base)])}"
    lines = [columns(rows), *notes, printable(f"results: {base / RESULTS}"), printable(charts)]
    return "\n".join(filter(None, lines))


def _rank(result: Result) -> tuple[bool, float]:
    loss = None if result.summary is None else result.summary.last_eval_loss
    return (loss is None, loss or 0.0)


def _row(result: Result) -> list[str]:
    label, summary = result.candidate.label, result.summary
    if summary is None:
        return [label, "not run", UNKNOWN, UNKNOWN, UNKNOWN]
    loss = UNKNOWN if summary.last_eval_loss is None else f"{summary.last_eval_loss:.4f}"
    return [label, summary.status, str(summary.step), show_count(summary.tokens_total), loss]
