"""Checks on a sweep's points before the first starts: each alone, and whether all are comparable."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from launcher.commands import train
from launcher.commands.sweep_results import (
    Candidate,
    PointResult,
    as_json,
    note_on_evaluation,
    notes_on_other_settings,
    settings_text,
)
from launcher.preflight.examination import judge_dry_run
from launcher.report.formats.text import render
from launcher.run.summary import summarize_finished_run
from launcher.terminal import console
from launcher.terminal.values import result_json
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import listed
from neobert.printable import printable
from neobert.tasks.specs import spec_of


def require_comparable(candidates: Sequence[Candidate]) -> None:
    """Raise ProjectError if the losses of the points would not be comparable."""
    _refuse_unequal_tokens(candidates)
    _refuse_unequal_negatives(candidates)
    refuse_other_settings(candidates)


def check_points(
    request: train.TrainRequest, candidates: Sequence[Candidate], output_format: str, predictions: str
) -> int:
    """Print the predictions, check each point, and return the first exit code that is not 0.

    JSON output has the points only if none will be trained. Raises ProjectError for runs on several nodes.
    """
    if any(candidate.run.config.distributed.nnodes > 1 for candidate in candidates):
        message = "distributed.nnodes exceeds 1, but a sweep runs on one node"
        raise ProjectError("sweep", message, "launch the points one at a time", exit_code=EXIT_USAGE)
    if output_format == "text":
        console.write("\n".join([predictions, *notes_on_other_settings(candidates)]))
    if note := note_on_evaluation(candidates):
        console.log(note)
    code = _dry_run_points(request, candidates)
    if output_format == "json" and (code != EXIT_OK or request.dry_run):
        results = [
            PointResult(each, summarize_finished_run(each.folder) if each.is_finished else None)
            for each in candidates
        ]
        console.write(result_json(as_json(results)))
    return code


def _refuse_unequal_tokens(candidates: Sequence[Candidate]) -> None:
    """Raise ProjectError if points train on unequal numbers of tokens, so that losses are not comparable."""
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


def refuse_other_settings(candidates: Sequence[Candidate]) -> None:
    """Raise ProjectError if points would resume, or have finished, runs that were begun with other settings.

    Such a run mixes both settings, so its loss does not belong to the point.
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


def _dry_run_points(request: train.TrainRequest, candidates: Sequence[Candidate]) -> int:
    """Run the checks of a dry run for every unfinished point.

    Prints all findings of a failed point, and each warning at the first point that has it.
    """
    code, shown = EXIT_OK, set[tuple[str, str]]()
    for candidate in candidates:
        if candidate.is_finished:
            continue
        report = judge_dry_run(candidate.run, candidate.folder, owns_run=True, strict=request.strict)
        if report.exit_code != EXIT_OK and not request.unguarded:
            console.log(f"{printable(candidate.point.label)}\n{render(report)}")
            code = code or report.exit_code
        elif new := [each for each in report.findings if (each.code, each.message) not in shown]:
            findings = render(report._replace(findings=tuple(new)), quiet=True)
            console.log(f"{printable(candidate.point.label)}\n{findings}")
        shown.update((each.code, each.message) for each in report.findings)
    if code != EXIT_OK:
        console.log("a point failed its checks: no run was started or written")
    return code
