"""`train`, which trains the points of a sweep, the trials of a search, or one run."""

from __future__ import annotations

from launcher.commands import train
from launcher.commands.several_options import SeveralRunsOptions, require_consistent


def run(request: train.TrainRequest, options: SeveralRunsOptions, output_format: str) -> int:
    """Train a sweep or a search if `options` has one, else one run; return the exit code.

    Raises ProjectError for options that contradict each other.
    """
    require_consistent(options)
    if options.search:
        from launcher.commands import sweep_search

        return sweep_search.run(request, options, output_format)
    if options.sweep:
        from launcher.commands import sweep

        return sweep.run(request, options, output_format)
    return train.run(request, output_format)
