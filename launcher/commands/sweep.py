"""`train --sweep`: check all points and print their predicted cost, then train them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.commands import train
from launcher.commands.parallel_points import slots_for, train_points
from launcher.commands.selection import Selection
from launcher.commands.several_options import SeveralRunsOptions
from launcher.commands.sweep_checks import check_points, require_comparable
from launcher.commands.sweep_results import (
    Candidate,
    PointResult,
    collect,
    predictions_with_totals,
    print_results,
    write_results,
)
from launcher.io.files import make_folder
from launcher.preflight.hub_weights import require_downloaded
from launcher.run.summary import Summary
from launcher.run.sweep_points import Point, expand, parse_axes
from launcher.rundir.directory import is_finished, run_directory
from launcher.rundir.records import Record, read_json
from launcher.terminal import console
from neobert.config import to_dict
from neobert.config.keys import key_effect, path_keys
from neobert.config.nodes import join
from neobert.config.overrides import format_text_override
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.runfiles.checkpoint.state import CONFIG, STATE_DIR
from neobert.runfiles.resume_policy import Difference, differences, is_structural
from neobert.runfiles.run_dir import CHECKPOINTS, MANIFEST, NEWEST, RESOLVED
from profiles.registry import ResolvedRun
from validators.planning import plan_run


class ListedPoints:
    """Queue of the points of a sweep, in order, and their results."""

    def __init__(self, candidates: Sequence[Candidate], base: Path) -> None:
        self.results = [PointResult(candidate) for candidate in candidates]
        self._base = base
        self._waiting = enumerate(candidates, start=1)

    def next_point(self) -> Candidate | None:
        """Log and return the next point, or return None after the last."""
        number, candidate = next(self._waiting, (0, None))
        if candidate is not None:
            console.log(printable(f"point {number} of {len(self.results)}: {candidate.point.label}"))
        return candidate

    def record_result(self, candidate: Candidate, summary: Summary | None) -> None:
        """Record the result of a point in sweep.json; `summary` is None if it was not started."""
        result = next(result for result in self.results if result.candidate is candidate)
        result.summary = summary
        write_results(self.results, self._base)


def run(request: train.TrainRequest, options: SeveralRunsOptions, output_format: str) -> int:
    """Check all points, then train them; return the first exit code that is not 0.

    `options.point` trains that point only, `options.collects` only collects results, and
    `request.dry_run` only checks. The sweep continues after a failed point, and ends if it is
    interrupted or preempted. The same command resumes it.
    """
    candidates = make_candidates(request, options.sweep, allows_unequal_tokens=options.allows_unequal_tokens)
    base = candidates[0].folder.parent
    if options.collects:
        return collect([*map(PointResult, candidates)], base, output_format)
    if options.point is not None:
        return train_separately(request, candidates, options.point, output_format)
    slots = slots_for(candidates[0].run, request, options.parallel)
    if (
        code := check_points(request, candidates, output_format, predictions_with_totals(candidates))
    ) != EXIT_OK or request.dry_run:
        return code
    make_folder(base)
    points = ListedPoints(candidates, base)
    code = train_points(points, request, output_format, slots)
    print_results(points.results, base, output_format)
    return code


def make_candidates(
    request: train.TrainRequest, sweeps: Sequence[str], *, allows_unequal_tokens: bool
) -> list[Candidate]:
    """Return the points of a sweep.

    Raises ProjectError for --receipt, or points that are not comparable unless `allows_unequal_tokens`.
    """
    points = expand(parse_axes(sweeps))
    base = run_directory(resolve_base_run(request))
    candidates = [make_candidate(request.selection, point, base) for point in points]
    if not allows_unequal_tokens:
        require_comparable(candidates)
    return candidates


def resolve_base_run(request: train.TrainRequest) -> ResolvedRun:
    """Return the run that all points vary. Raises ProjectError for --receipt."""
    if request.receipt is not None:
        message = "a receipt covers one run, but a sweep trains several"
        raise ProjectError("sweep", message, "leave out --receipt", "--receipt", EXIT_USAGE)
    resolved = request.selection.require()
    require_downloaded(resolved.config)
    return resolved


def train_separately(
    request: train.TrainRequest, candidates: Sequence[Candidate], point: int, output_format: str
) -> int:
    """Train one point without writing sweep.json, because other points may be trained at the same time.

    Raises ProjectError if there is no such point.
    """
    if point >= len(candidates):
        message = (
            f"--point is {point}, but the sweep has {counted(len(candidates), 'point')}, numbered from 0"
        )
        raise ProjectError(
            "sweep",
            message,
            "submit the sweep again, so that its jobs match its points",
            "--point",
            EXIT_USAGE,
        )
    chosen = candidates[point]
    console.log(printable(f"point {point + 1} of {len(candidates)}: {chosen.point.label}"))
    return train.run(replace(request, selection=chosen.selection), output_format)


def make_candidate(selection: Selection, point: Point, base: Path) -> Candidate:
    """Resolve the run of a point. It resumes by default, so that the same command completes a sweep."""
    own = [
        "trainer.resume_from_checkpoint=auto",
        *selection.overrides,
        *point.overrides,
        format_text_override("trainer.output_dir", str(base / point.folder)),
    ]
    chosen = replace(selection, overrides=tuple(own))
    resolved = chosen.resolve()
    folder = run_directory(resolved)
    is_over, begun_with = is_finished(resolved, folder), changed_settings(resolved, folder)
    return Candidate(point, chosen, resolved, plan_run(resolved), is_over, begun_with)


def changed_settings(run: ResolvedRun, folder: Path) -> tuple[Difference, ...]:
    """Return the keys that determine the result and differ in a checkpoint that the run would resume.

    All checkpoints count, so that a run that was resumed with other settings before is found as well. Keys
    that do not affect the result (machine, loading, saves, logging) are left out. Empty without checkpoints,
    and if the run would not resume the newest of them.
    """
    if run.config.trainer.resume_from_checkpoint not in NEWEST:
        return ()
    current, start = to_dict(run.config), read_json(folder / MANIFEST).get("working_directory")
    differing = {
        each.key: each
        for saved in _saved_configs(folder)
        for each in differences(saved, current)
        if (is_structural(each.key) or key_effect(each.key) == "numerics") and not _is_same_path(each, start)
    }
    return tuple(differing.values())


def _saved_configs(folder: Path) -> Iterator[Record]:
    """Yield the configs of the checkpoints; if none can be read, the last launch's.

    A launch that saved nothing may have had a different config from the checkpoints.
    """
    root = folder / CHECKPOINTS
    steps = _checkpoint_steps(root)
    saved = [config for step in steps if (config := read_json(root / str(step) / STATE_DIR / CONFIG))]
    last = read_json(folder / RESOLVED) if steps else {}
    yield from saved or ([last] if last else [])


def _checkpoint_steps(root: Path) -> list[int]:
    """Return the steps of the checkpoints; empty if the folder is not readable, which other checks report."""
    try:
        return checkpoint_steps(root)
    except OSError:
        return []


def _is_same_path(difference: Difference, start: Any) -> bool:
    """Return whether both values are paths to the same file; the saved one is relative to folder `start`."""
    if difference.key not in map(join, path_keys()):
        return False
    both = (start, difference.saved), (os.getcwd(), difference.current)
    if not all(isinstance(text, str) for pair in both for text in pair):
        return False
    saved, current = (os.path.normpath(os.path.join(*pair)) for pair in both)
    return saved == current
