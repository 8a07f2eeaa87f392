"""Options of `train` that train several runs: a sweep, or a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.metric_names import EVAL_LOSS

TRIALS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralRunsOptions:
    """Arguments of a sweep or a search; `train` trains one run if both are empty.

    Attributes:
        sweep: `KEY=VALUES` arguments.
        search: `KEY=RANGE` arguments.
        parallel: number of runs that train at the same time; None trains one after another.
        point: train only this point of the sweep, from 0, as a task of a job array does.
        collects: train nothing, and write the results of runs that were trained separately.
    """

    sweep: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    trials: int | None = None
    metric: str | None = None
    parallel: int | None = None
    point: int | None = None
    collects: bool = False
    allows_unequal_tokens: bool = False

    @property
    def as_arguments(self) -> tuple[str, ...]:
        """Command-line options that train the same runs."""
        words = [word for value in self.sweep for word in ("--sweep", value)]
        words += [word for value in self.search for word in ("--search", value)]
        words += ["--trials", str(self.trials)] if self.trials else []
        words += ["--metric", self.metric] if self.metric else []
        return (*words, *["--allow-unequal-tokens"] * self.allows_unequal_tokens)

    @property
    def num_trials(self) -> int:
        """Number of trials of the search, including trials from earlier commands."""
        return self.trials or TRIALS

    @property
    def optimized_metric(self) -> str:
        """Metric of the last evaluation that a search optimizes."""
        return self.metric or EVAL_LOSS


def require_consistent(options: SeveralRunsOptions) -> None:
    """Raise ProjectError for an option without its --sweep or --search, or for contradicting options."""
    of_search = {"--trials": options.trials is not None, "--metric": options.metric is not None}
    of_sweep = {"--point": options.point is not None}
    of_both = {
        "--allow-unequal-tokens": options.allows_unequal_tokens,
        "--collect": options.collects,
        "--parallel": options.parallel is not None,
    }
    if options.sweep and options.search:
        message = "--sweep and --search are both given"
        hint = "leave out --sweep, and search its keys with --search KEY=VALUE,VALUE"
        raise ProjectError("sweep", message, hint, "--search", EXIT_USAGE)
    if options.parallel is not None and options.point is not None:
        message = "--point trains a single point, so --parallel has no effect"
        raise ProjectError("sweep", message, "leave out --parallel", "--parallel", EXIT_USAGE)
    if not options.search:
        _refuse_without(of_search, "search", "KEY=RANGE")
    if not options.sweep:
        _refuse_without(of_sweep if options.search else {**of_both, **of_sweep}, "sweep", "KEY=VALUES")


def _refuse_without(given: Mapping[str, bool], missing: str, values: str) -> None:
    if place := next((option for option, is_given in given.items() if is_given), ""):
        hint = f"add --{missing} {values}, or remove {place}"
        raise ProjectError("sweep", f"{place} is given without --{missing}", hint, place, EXIT_USAGE)
