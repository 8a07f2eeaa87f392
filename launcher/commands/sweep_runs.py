"""Training a sweep's points, one after another."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Protocol

from launcher.commands import train
from launcher.commands.sweep_results import Candidate
from launcher.run.next_command import resume_command
from launcher.run.summary import Summary, summarize_run
from launcher.rundir.records import file_stamp
from launcher.terminal import console
from neobert.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PREEMPTED, ProjectError
from neobert.runfiles.run_dir import MANIFEST

STOPPED = (EXIT_PREEMPTED, EXIT_INTERRUPTED)


class PointQueue(Protocol):
    """Source of the points to train, which also records their results."""

    def next_point(self) -> Candidate | None:
        """Return the next point to train, or None if there is none left."""

    def record_result(self, candidate: Candidate, summary: Summary | None) -> None:
        """Record the result of a point; `summary` is None if its trainer was not started."""


def train_in_turn(points: PointQueue, request: train.TrainRequest, output_format: str) -> int:
    """Train one point after another; return the first exit code that is not 0.

    Continues after a failed point, and ends if one is interrupted or preempted.
    """
    code = EXIT_OK
    while (candidate := points.next_point()) is not None:
        before = file_stamp(candidate.folder / MANIFEST)
        ended = train_point(replace(request, selection=candidate.selection), output_format)
        record_result_of_launch(points, candidate, ended, before)
        code = code or ended
        if ended in STOPPED:
            log_how_to_continue()
            break
    return code


def log_how_to_continue() -> None:
    """Log that the sweep was stopped, and the command that continues it."""
    console.log(f"the sweep was stopped; continue with: {resume_command(has_checkpoint=True)}")


def record_result_of_launch(
    points: PointQueue, candidate: Candidate, code: int, before: tuple[int, int] | None
) -> bool:
    """Record the result of a launch, and return whether its trainer was started.

    A launch that was stopped before has no result and is repeated. If its checks failed, files in the run
    directory are from an earlier launch.

    Args:
        before: stamp of the manifest before the launch.
    """
    is_started = code == EXIT_OK or file_stamp(candidate.folder / MANIFEST) != before
    if is_started or code not in STOPPED:
        points.record_result(
            candidate, summarize_run(candidate.folder, code, (), None) if is_started else None
        )
    return is_started


def train_point(request: train.TrainRequest, output_format: str) -> int:
    """Train one point and return its exit code; with JSON output, all its output goes to standard error.

    Errors are logged, except ProjectError for an interruption or a preemption, which is raised.
    """
    try:
        if output_format == "text":
            return train.run(request, "text")
        with redirect_stdout(sys.stderr):
            return train.run(request, "text")
    except ProjectError as error:
        if error.exit_code in STOPPED:
            raise
        console.log(console.describe_error(error))
        return error.exit_code
