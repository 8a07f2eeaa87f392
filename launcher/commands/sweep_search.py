"""`train --search`: check the corners of a space and print its highest cost, then train trials in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from launcher.commands import train
from launcher.commands.parallel_points import slots_for, train_points
from launcher.commands.several_options import SeveralRunsOptions
from launcher.commands.sweep import make_candidate, resolve_base_run
from launcher.commands.sweep_checks import check_points, refuse_other_settings, require_comparable
from launcher.commands.sweep_results import (
    Candidate,
    PointResult,
    collect,
    cost_text,
    predictions_table,
    print_results,
    read_summary,
    write_results,
)
from launcher.commands.sweep_runs import STOPPED
from launcher.io.files import make_folder
from launcher.preflight.examination import judge_dry_run
from launcher.report.formats.text import render
from launcher.run.study import (
    CHOICE,
    COMPLETE,
    FAILED,
    FILE,
    WAITING,
    SearchParameter,
    Study,
    Trial,
    Value,
    corners,
    parse_space,
    require_optuna,
    trial_point,
    values_in_space,
)
from launcher.run.summary import Summary
from launcher.rundir.directory import lock_run_directory, run_directory
from launcher.terminal import console
from launcher.terminal.values import show_duration
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.tasks.specs import is_higher_better, reported_metrics

MAX_REFUSED = 3
"""Number of consecutive refused launches that ends the search, because the machine is then the cause."""


class SearchedTrials:
    """Trials of a study as points: draws values, resolves and checks each trial, and records its metric."""

    def __init__(
        self,
        study: Study,
        space: Sequence[SearchParameter],
        request: train.TrainRequest,
        base: Path,
        options: SeveralRunsOptions,
    ) -> None:
        self._study, self._space, self._request = study, space, request
        self._base, self._options = base, options
        self._left_behind: list[Trial] = []
        self._refused = 0
        self._running: dict[Path, Trial] = {}
        self.results = dict(self._earlier_results())

    def _earlier_results(self) -> Iterator[tuple[int, PointResult]]:
        """Yield the number and result of each earlier trial, except failed ones whose config is not valid."""
        for trial in self._study.trials():
            if len(trial.values) < len(self._space):
                continue  # killed while it was drawn
            try:
                candidate = self._resolve_trial(trial)
            except ProjectError:
                if trial.state != FAILED:
                    raise
            else:
                yield trial.number, PointResult(candidate, read_summary(candidate))

    @property
    def is_shared(self) -> bool:
        """Return whether other tasks of a job array may search at the same time."""
        return bool(self._study.array_task)

    @property
    def has_given_up(self) -> bool:
        """Return whether the search ends, because `MAX_REFUSED` trials in a row were refused."""
        return self._refused >= MAX_REFUSED

    @property
    def has_result(self) -> bool:
        """Return whether any trial has a metric."""
        return any(each.state == COMPLETE for each in self._study.trials())

    def begin(self, run_file_values: Mapping[str, Value] | None) -> None:
        """Propose the run file's values as the first trial, and find unfinished trials of a stopped search.

        Raises ProjectError if the trainer of one of them still runs.
        """
        if run_file_values and self._study.is_first_task and not self._study.trials():
            self._study.propose(run_file_values)
        self._left_behind = self._study.unfinished_trials()
        begun = [self.results[each.number] for each in self._left_behind if each.number in self.results]
        for folder in (result.candidate.folder for result in begun):
            if folder.is_dir():
                with lock_run_directory(folder):
                    pass

    def next_point(self) -> Candidate | None:
        """Return an unfinished trial of a stopped search, or a new one, or None at the end.

        Trials that fail their checks are recorded as failed and skipped.
        """
        while not self.has_given_up and (trial := self._next_trial()) is not None:
            if (candidate := self._check_trial(trial)) is not None:
                self._running[candidate.folder] = trial
                return candidate
            self._study.tell(trial, None)
        if self.has_given_up:
            way = "fix the cause shown above, then run the same command again"
            console.log(f"{MAX_REFUSED} trials in a row were refused: {way}")
        return None

    def record_result(self, candidate: Candidate, summary: Summary | None) -> None:
        """Record the metric of a trial; a trial that was stopped remains unfinished and is resumed later."""
        trial = self._running.pop(candidate.folder)
        self._refused = self._refused + 1 if summary is None else 0
        self.results[trial.number].summary = summary
        write_results(self.results.values(), self._base, self._options.optimized_metric)
        if summary is None or summary.status in ("finished", "failed"):
            self._study.tell(trial, self._metric_value(summary))

    def _metric_value(self, summary: Summary | None) -> float | None:
        if summary is None or summary.status != "finished":
            return None
        value = summary.last_evaluation.get(self._options.optimized_metric)
        return value if isinstance(value, int | float) and math.isfinite(value) else None

    def _next_trial(self) -> Trial | None:
        while self._left_behind:
            trial = self._left_behind.pop(0)
            if len(trial.values) == len(self._space):
                return trial
            self._study.tell(trial, None)
        requested = [trial for trial in self._study.trials() if trial.state != WAITING]
        if len(requested) >= self._options.num_trials:
            return None
        trial = self._study.ask()
        if trial.number <= self._options.num_trials:
            return trial
        self._study.tell(trial, None)  # another task of an array got the last one at the same moment
        return None

    def _resolve_trial(self, trial: Trial) -> Candidate:
        """Resolve the run of a trial; a trial with equal values reuses the earlier run."""
        earlier = self._study.trials()[: trial.number]
        twins = (each.number for each in earlier if each.state == COMPLETE and each.values == trial.values)
        first = next(twins, None)
        point = trial_point(self._space, trial.number, trial.values, first)
        return make_candidate(self._request.selection, point, self._base)

    def _check_trial(self, trial: Trial) -> Candidate | None:
        """Return the point of a trial, or log its findings and return None if it fails the checks."""
        title = f"trial {trial.number} of {self._options.num_trials}"
        try:
            candidate = self._resolve_trial(trial)
        except ProjectError as error:
            console.log(f"{title}\n{console.describe_error(error)}")
            return None
        self.results[trial.number] = PointResult(candidate)
        console.log(printable(f"{title}: {' '.join(candidate.point.label.split()[1:])}"))
        if candidate.is_finished:
            return candidate
        report = judge_dry_run(candidate.run, candidate.folder, owns_run=True, strict=self._request.strict)
        if report.exit_code == EXIT_OK or self._request.unguarded:
            return candidate
        console.log(f"{render(report)}\nthe trial failed its checks and was not started")
        return None


def run(request: train.TrainRequest, options: SeveralRunsOptions, output_format: str) -> int:
    """Check the corners of the space, then train trials; return 0 if any has a result.

    `options.collects` only collects the results, and `request.dry_run` only checks the corners. Raises
    ProjectError for trials that are not comparable, or an unknown metric.
    """
    require_optuna()
    space = parse_space(options.search)
    resolved = resolve_base_run(request)
    _require_metric(resolved.config, options.optimized_metric)
    base = run_directory(resolved)
    ends = [make_candidate(request.selection, point, base) for point in corners(space)]
    if not options.allows_unequal_tokens:
        require_comparable(ends)
        _refuse_unequal_sizes(ends)

    def trials_so_far() -> SearchedTrials:
        study = Study(
            base / FILE,
            space,
            options.optimized_metric,
            is_higher_better=is_higher_better(resolved.config.trainer, options.optimized_metric),
            seed=resolved.config.seed,
        )
        return SearchedTrials(study, space, request, base, options)

    is_begun = (base / FILE).exists()
    if options.collects and not is_begun:
        message, hint = "no trial of this search was started", "leave out --collect"
        raise ProjectError("search", message, hint, str(base), EXIT_CHECK_FAILED)
    trials = trials_so_far() if is_begun else None
    earlier = [] if trials is None else [*trials.results.values()]
    if trials is not None and options.collects:
        return collect(earlier, base, output_format, options.optimized_metric)
    if not options.allows_unequal_tokens:
        refuse_other_settings([result.candidate for result in earlier])
    slots = slots_for(resolved, request, options.parallel)
    code = check_points(
        request, ends, output_format, _format_estimates(ends, options.num_trials, len(earlier))
    )
    if code != EXIT_OK or request.dry_run:
        return code
    make_folder(base)
    trials = trials or trials_so_far()
    with nullcontext() if trials.is_shared else lock_run_directory(base):
        trials.begin(_run_file_values(space, resolved.config, ends))
        code = train_points(trials, request, output_format, slots)
    print_results([*trials.results.values()], base, output_format, options.optimized_metric)
    is_over = trials.has_result and not trials.has_given_up and code not in STOPPED
    return EXIT_OK if is_over else code


def _format_estimates(ends: Sequence[Candidate], trials: int, done: int) -> str:
    """Format the predictions for the corners, and the maximum time and cost of the remaining trials."""
    left = max(0, trials - done)
    rests = [candidate.remaining for candidate in ends]
    costs = [rest.cost.value for rest in rests]
    known = [cost for cost in costs if cost is not None]
    price = f", cost {cost_text(left * max(known))}" if len(known) == len(costs) else ""
    total = show_duration(left * max(rest.eta_s.value for rest in rests))
    so_far = f" ({done} so far)" if done else ""
    most = f"{counted(trials, 'trial')}{so_far} between these corners: at most {total}{price}"
    return f"{predictions_table(ends)}\n{most}"


def _require_metric(config: RunConfig, metric: str) -> None:
    """Raise ProjectError for a metric that no evaluation of the run reports."""
    reported = [each.name for each in reported_metrics(config)]
    if metric not in reported and not config.plugins.metrics:
        message = f"{printable(metric)} is not a metric of this run"
        raise ProjectError("search", message, f"choose one of {', '.join(reported)}", "--metric", EXIT_USAGE)


def _refuse_unequal_sizes(ends: Sequence[Candidate]) -> None:
    """Raise ProjectError if corners have models of different sizes: the larger one wins at equal tokens."""
    sizes = {candidate.plan.num_parameters.value: candidate.point.label for candidate in ends}
    if len(sizes) > 1:
        texts = listed([f"{size:,} ({label})" for size, label in sorted(sizes.items())], 3)
        raise ProjectError(
            "search-sizes",
            f"the trials train models with unequal numbers of parameters: {texts}",
            "search other keys, or add --allow-unequal-tokens",
            exit_code=EXIT_CHECK_FAILED,
        )


def _run_file_values(
    space: Sequence[SearchParameter], config: RunConfig, ends: Sequence[Candidate]
) -> dict[str, Value] | None:
    """Return the run file's values of the searched keys, or None if any is outside the space."""
    choices = {
        (each.key, text): flatten(to_dict(end.run.config))[each.key]
        for end in ends
        for each, override in zip(space, end.point.overrides, strict=True)
        if each.kind == CHOICE and (text := override.partition("=")[2])
    }
    return values_in_space(space, flatten(to_dict(config)), choices)
