"""The processes of a job that share its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.progress import report_to_launcher
from neobert.worker_pool import worker_pool

Request = TypeVar("Request")
Share = TypeVar("Share")


class HasSpeed(Protocol):
    """Result of one process: tokens, and the seconds that they took."""

    @property
    def tokens(self) -> int: ...  # noqa: D102

    @property
    def seconds(self) -> float: ...  # noqa: D102


def throughput_report(shares: Sequence[HasSpeed]) -> dict[str, Any]:
    """Return the number of processes, the time of the slowest, and their tokens per second, for a report."""
    seconds = max(share.seconds for share in shares)
    return {
        "processes": len(shares),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(sum(share.tokens for share in shares) / seconds) if seconds else None,
    }


def run_in_processes(
    run_share: Callable[[Request, int, int], Share], request: Request, size: int, activity: str
) -> list[Share]:
    """Return the results of `run_share(request, rank, size)` of each rank, in processes if there are several.

    Raises `ProjectError` if a process was killed; `activity` completes the message: "killed while ...".
    """
    if size == 1:
        return [run_share(request, 0, 1)]
    try:
        with worker_pool(size, report_to_launcher) as ranks:
            return list(ranks.map(run_share, [request] * size, range(size), [size] * size))
    except BrokenProcessPool as error:
        message = f"a process was killed while {activity}, probably because memory ran out"
        hint = "lower --processes or --max-length; the same command continues the job"
        raise ProjectError("process-killed", message, hint, exit_code=EXIT_TRAINING_FAILED) from error
