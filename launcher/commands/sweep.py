"""`train --sweep`: check all points and print their predicted cost, then train them one by one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from launcher.commands import train
from launcher.commands.selection import Selection
from launcher.commands.sweep_results import (
    RESULTS,
    Candidate,
    Result,
    as_json,
    collect,
    listing,
    note_on_evaluation,
    notes_on_begun_otherwise,
    settings_text,
    table,
)
from launcher.io.files import make_folder, write_text
from launcher.preflight.examination import judge_dry_run
from launcher.preflight.hub_weights import require_downloaded
from launcher.report.formats.text import render
from launcher.run.next_command import resume_command
from launcher.run.summary import already_finished, conclude
from launcher.run.sweep_points import Point, expand, parse_axes
from launcher.rundir.begun_otherwise import settings_begun_with
from launcher.rundir.directory import is_finished, run_directory
from launcher.rundir.records import stamp
from launcher.terminal import console
from launcher.terminal.values import result_json
from neobert.config.overrides import text_override
from neobert.errors import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_USAGE,
    ProjectError,
)
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.runfiles.run_dir import MANIFEST
from neobert.tasks.specs import spec_of
from validators.planning import plan_run

STOPPED = (EXIT_PREEMPTED, EXIT_INTERRUPTED)


def run(
    request: train.Request,
    sweeps: Sequence[str],
    output_format: str,
    *,
    allows_unequal_tokens: bool,
    point: int | None = None,
    collects: bool = False,
) -> int:
    """Check every point, then train one after another; return the first exit code that is not 0.

    The sweep continues after a failed point, and ends if it is interrupted or preempted. The same command
    resumes it.

    Args:
        point: train only this point, from 0, as a task of a job array does.
        collects: train nothing, and write the results of points that were trained apart.
    """
    candidates = candidates_of(request, sweeps, allows_unequal_tokens=allows_unequal_tokens)
    base = candidates[0].folder.parent
    if collects:
        return collect(candidates, base, output_format)
    if point is not None:
        return train_apart(request, candidates, point, output_format)
    if (code := check(request, candidates, output_format)) != EXIT_OK or request.dry_run:
        return code
    return _train_all(request, candidates, base, output_format)


def candidates_of(
    request: train.Request, sweeps: Sequence[str], *, allows_unequal_tokens: bool
) -> list[Candidate]:
    """Return the points of a sweep. Raises ProjectError if they are not comparable, or for --receipt."""
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
        _refuse_unequal_negatives(candidates)
        _refuse_begun_otherwise(candidates)
    return candidates


def train_apart(
    request: train.Request, candidates: Sequence[Candidate], point: int, output_format: str
) -> int:
    """Train one point, and leave sweep.json to `collect`: other points are trained at the same time."""
    if point >= len(candidates):
        message = (
            f"--point is {point}, but the sweep has {counted(len(candidates), 'point')}, numbered from 0"
        )
        raise ProjectError("sweep", message, "submit the sweep again", "--point", EXIT_USAGE)
    chosen = candidates[point]
    console.tell(printable(f"point {point + 1} of {len(candidates)}: {chosen.point.label}"))
    return train.run(replace(request, selection=chosen.selection), output_format)


def check(request: train.Request, candidates: Sequence[Candidate], output_format: str) -> int:
    """Print all points with their predicted cost, check each, return the first exit code that is not 0.

    With JSON output the points are printed only if none is trained: else the results are the one object.
    """
    if any(candidate.run.config.distributed.nnodes > 1 for candidate in candidates):
        message = "distributed.nnodes exceeds 1, but a sweep runs on one node"
        raise ProjectError("sweep", message, "launch the points one at a time", exit_code=EXIT_USAGE)
    if output_format == "text":
        console.write("\n".join([listing(candidates), *notes_on_begun_otherwise(candidates)]))
    if note := note_on_evaluation(candidates):
        console.tell(note)
    code = _judge(request, candidates)
    if output_format == "json" and (code != EXIT_OK or request.dry_run):
        results = [
            Result(each, already_finished(each.folder) if each.is_finished else None) for each in candidates
        ]
        console.write(result_json(as_json(results)))
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


def _refuse_unequal_negatives(candidates: Sequence[Candidate]) -> None:
    """Raise ProjectError if the losses of points compare queries with different numbers of documents."""
    seen = {
        (spec_of(config).texts(config), candidate.plan.tokens_per_step.value): candidate.point.label
        for candidate in candidates
        if spec_of(config := candidate.run.config).predicts == "pairs"
    }
    if len(seen) > 1:
        listed = "; ".join(
            f"{texts} texts per pair, {tokens:,} tokens per step ({label})"
            for (texts, tokens), label in sorted(seen.items())
        )
        raise ProjectError(
            "sweep-negatives",
            f"the points compare queries with unequal numbers of documents: {listed}",
            "sweep other keys, or add --allow-unequal-tokens",
            exit_code=EXIT_CHECK_FAILED,
        )


def _refuse_begun_otherwise(candidates: Sequence[Candidate]) -> None:
    """Raise ProjectError if points would resume, or have finished, runs that were begun with other settings.

    Such a run has the schedule of both settings: its loss is not that of the point.
    """
    begun = [candidate for candidate in candidates if candidate.begun_with]
    if begun:
        points = "; ".join(f"{each.point.label} ({settings_text(each.begun_with)})" for each in begun)
        folders = listed([shlex.quote(str(each.folder)) for each in begun], 3)
        raise ProjectError(
            "sweep-begun-otherwise",
            f"the run directories of these points contain runs with other settings: {points}",
            f"set another trainer.output_dir, remove {folders}, or add --allow-unequal-tokens to resume them",
            exit_code=EXIT_CHECK_FAILED,
        )


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
        write_text(base / RESULTS, result_json(as_json(results)))
        if ended in STOPPED:
            console.tell(f"the sweep was stopped; continue it with: {resume_command(has_checkpoint=True)}")
            break
    console.write(result_json(as_json(results)) if output_format == "json" else table(results, base))
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
