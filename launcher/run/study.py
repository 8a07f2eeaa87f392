"""Optuna study of a search, stored as a journal of JSON lines in the folder of the search.

Each suggestion depends only on the seed and the earlier trials, so that a killed search continues with new
values. The arguments of `--search` define the space.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.run.sweep_points import Axis, Point, expand, parse_axes, refuse_argument, short_names
from neobert.errors import EXIT_USAGE, ProjectError

if TYPE_CHECKING:
    import optuna
    from optuna.storages.journal import JournalFileSymlinkLock

INSTALL = "pip install 'optuna>=5'"
FILE = "study.jsonl"
NAME = "search"
SEARCHED, TASK = "searched", "array_task"
"""Attributes in the journal: what is searched, and the task of a job array that drew a trial."""
SEED_STRIDE = 1_000_003
WAITING, RUNNING, COMPLETE, FAILED = "waiting", "running", "complete", "failed"

Value = float | int | str
"""A number, or the text of a choice."""
SYNTAX = (
    "write KEY=log(LOW,HIGH), KEY=uniform(LOW,HIGH), KEY=int(LOW,HIGH) or KEY=VALUE,VALUE,..., "
    "as in --search 'optimizer.lr=log(1e-4,3e-3)'"
)
RANGE = re.compile(r"([^=]+)=(log|uniform|int)\(([^,()]+),([^,()]+)\)")
CALL = re.compile(r"[^=]+=\w+\(")
CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a search.

    Attributes:
        number: number of the trial, from 1.
        state: waiting, running, complete or failed.
        values: value of each searched key; incomplete if the search was killed while it drew them.
        value: metric of a complete trial; None in any other state.
        array_task: ID of the Slurm array task that drew the trial; empty outside a job array.
    """

    number: int
    state: str
    values: Mapping[str, Value]
    value: float | None
    array_task: str


class Study:
    """Optuna study of a search in a journal file, which several processes may use at the same time.

    Raises ProjectError if the journal cannot be read or written, is damaged, or belongs to a search with
    other keys, values or metric.
    """

    def __init__(
        self, path: Path, space: Sequence[SearchParameter], metric: str, *, is_higher_better: bool, seed: int
    ) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._path, self._space, self._seed = path, space, seed
        self.array_task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
        self.is_first_task = self.array_task == os.environ.get("SLURM_ARRAY_TASK_MIN", self.array_task)
        self._distributions = {each.key: _distribution(each) for each in space}
        searched = [metric, *([each.key, each.kind, *each.values] for each in space)]
        with self._convert_errors():
            lock = JournalFileSymlinkLock(str(path))  # holds on network file systems
            journal = JournalFileBackend(str(path), lock)
            _remove_incomplete_line(path, lock)
            self._study = optuna.create_study(
                storage=JournalStorage(journal),
                study_name=NAME,
                direction="maximize" if is_higher_better else "minimize",
                load_if_exists=True,
            )
            earlier = self._study.user_attrs.get(SEARCHED)
        if earlier is None:
            self._study.set_user_attr(SEARCHED, searched)
        elif earlier != searched:
            message = "the journal belongs to a search with different --search or --metric options"
            hint = "pass the options of that search, or set another trainer.output_dir"
            raise ProjectError("search", message, hint, str(path), EXIT_USAGE)

    def trials(self) -> list[Trial]:
        """Return all trials, in the order in which they were created."""
        with self._convert_errors():
            return [self._make_trial(each) for each in self._study.get_trials(deepcopy=False)]

    def unfinished_trials(self) -> list[Trial]:
        """Return the trials that a stopped search left running; in a job array, only this task's."""
        return [
            each for each in self.trials() if each.state == RUNNING and each.array_task == self.array_task
        ]

    def propose(self, values: Mapping[str, Value]) -> None:
        """Queue these values: the next `ask` returns them instead of newly drawn values."""
        self._study.enqueue_trial(dict(values))

    def ask(self) -> Trial:
        """Start a trial with the next proposed values, or else with newly drawn ones."""
        import optuna

        number = len(self._study.get_trials(deepcopy=False))
        # Tasks of an array may draw at the same moment, and must not get the same values.
        seed = self._seed + number + SEED_STRIDE * int(self.array_task or 0)
        self._study.sampler = optuna.samplers.TPESampler(seed=seed % 2**32)
        with self._convert_errors():
            drawn = self._study.ask(self._distributions)
            drawn.set_user_attr(TASK, self.array_task)
        return Trial(drawn.number + 1, RUNNING, drawn.params, None, self.array_task)

    def tell(self, trial: Trial, value: float | None) -> None:
        """Record the metric of a trial, or its failure if `value` is None."""
        import optuna

        state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
        self._study.tell(trial.number - 1, value, state=state)

    def _make_trial(self, frozen: optuna.trial.FrozenTrial) -> Trial:
        for each in self._space:
            if each.key in frozen.params and not each.contains(frozen.params[each.key]):
                raise ValueError(each.key)
        task = str(frozen.user_attrs.get(TASK, ""))
        state = {"FAIL": FAILED}.get(frozen.state.name, frozen.state.name.lower())
        return Trial(frozen.number + 1, state, frozen.params, frozen.value, task)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors to ProjectError: OSError to a problem of the disk, others to a damaged journal."""
        try:
            yield
        except OSError as error:
            message, hint = (
                f"the journal of the search cannot be read or written: {error.strerror}",
                "check the folder's permissions and space",
            )
            raise ProjectError("search", message, hint, str(self._path)) from None
        except Exception as error:  # Optuna checks no line of a journal: any error may come from one
            message = f"the journal of the search is damaged: reading it raised {type(error).__name__}"
            hint = "restore the file from a backup, or delete it to start the search again; the runs are kept"
            raise ProjectError("search", message, hint, str(self._path)) from None


def _remove_incomplete_line(path: Path, lock: JournalFileSymlinkLock) -> None:
    """Remove a last line that a crash cut short: Optuna would append the next one to it."""
    lock.acquire()
    try:
        content = path.read_bytes()
        if (end := content.rfind(b"\n") + 1) < len(content):
            os.truncate(path, end)
    finally:
        lock.release()


def require_optuna() -> None:
    """Raise ProjectError if optuna is not installed."""
    if find_spec("optuna") is None:
        raise ProjectError("search", "optuna is not installed", INSTALL, "--search", EXIT_USAGE)


def _distribution(parameter: SearchParameter) -> optuna.distributions.BaseDistribution:
    from optuna import distributions

    if parameter.kind == CHOICE:
        return distributions.CategoricalDistribution(parameter.values)
    low, high = parameter.ends
    if parameter.kind == "int":
        return distributions.IntDistribution(int(low), int(high))
    return distributions.FloatDistribution(low, high, log=parameter.kind == "log")


@dataclass(frozen=True, slots=True)
class SearchParameter:
    """A searched key.

    Attributes:
        kind: log, uniform or int for a range, or choice.
        values: the two ends of the range, or the choices, as text.
    """

    key: str
    kind: str
    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value of a range."""
        low, high = map(float, self.values)
        return low, high

    def contains(self, value: Any) -> bool:
        """Return whether a value of any type is in the range, or is one of the choices."""
        if self.kind == CHOICE:
            return value in self.values
        kinds = int if self.kind == "int" else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self._is_between(value)

    def _is_between(self, value: float) -> bool:
        low, high = self.ends
        return low <= value <= high


def parse_space(arguments: Sequence[str]) -> list[SearchParameter]:
    """Parse the arguments of `--search`. Raises ProjectError for wrong syntax or a forbidden key."""
    ranges = {argument: matched for argument in arguments if (matched := RANGE.fullmatch(argument))}
    plain = [f"{matched[1]}=0" if (matched := ranges.get(each)) else each for each in arguments]
    axes = parse_axes(plain)
    return [
        _parse_range(argument, *ranges[argument].groups())
        if argument in ranges
        else _parse_choices(argument, axis)
        for argument, axis in zip(arguments, axes, strict=True)
    ]


def corners(space: Sequence[SearchParameter]) -> list[Point]:
    """Return every combination of range ends and choices. Raises ProjectError above 1,000 points."""
    return expand([Axis(each.key, each.values) for each in space])


def trial_point(
    space: Sequence[SearchParameter], number: int, values: Mapping[str, Value], first: int | None = None
) -> Point:
    """Return label, run directory and overrides of a trial.

    Args:
        first: number of an earlier trial with equal values, whose run directory is reused, or None.
    """
    names = short_names([each.key for each in space])
    words = [f"{name}={_short_value_text(values[each.key])}" for name, each in zip(names, space, strict=True)]
    overrides = tuple(f"{each.key}={values[each.key]}" for each in space)
    folder = f"trial-{number if first is None else first}"
    return Point(f"trial-{number} {' '.join(words)}", folder, overrides)


def values_in_space(
    space: Sequence[SearchParameter], config_values: Mapping[str, Any], choices: Mapping[tuple[str, str], Any]
) -> dict[str, Value] | None:
    """Return the config's value of each searched key, or None if any of them is outside the space.

    Args:
        config_values: values by key.
        choices: config value of each choice, by key and text.
    """
    values: dict[str, Value] = {}
    for each in space:
        value: Any = config_values.get(each.key)
        if each.kind == CHOICE:
            value = next((text for text in each.values if choices[each.key, text] == value), None)
        if not each.contains(value):
            return None
        values[each.key] = value
    return values


def _parse_range(argument: str, key: str, kind: str, *ends: str) -> SearchParameter:
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        numbers = "integers" if kind == "int" else "numbers"
        refuse_argument(argument, f"the ends of the range are not {numbers}", SYNTAX)
    if not (abs(low) < float("inf") and abs(high) < float("inf") and low < high):
        refuse_argument(
            argument, "the ends of the range must be finite, and the lower one first", "correct its ends"
        )
    if kind == "log" and low <= 0:
        refuse_argument(
            argument,
            f"the range starts at {ends[0]}, but a log range must start above 0",
            "raise its lower end",
        )
    return SearchParameter(key, kind, tuple(end.strip() for end in ends))


def _parse_choices(argument: str, axis: Axis) -> SearchParameter:
    if len(axis.values) < 2 or CALL.match(argument):
        refuse_argument(argument, "the value is neither a range nor a list of values", SYNTAX)
    return SearchParameter(axis.key, CHOICE, axis.values)


def _short_value_text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
