"""Comparison of a run in low precision with the same run in bf16, which may use other kernels."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.preflight.rehearsal_children import POLL_S, RehearsalState
from launcher.probes.probe import IncompleteError, TimedOutError
from launcher.process.process_tree import kill_at_exit, kill_tree
from launcher.process.trainer_process import start_trainer_process
from launcher.rundir.records import read_json
from launcher.terminal.activity import announce
from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.families.table import with_kernels
from neobert.precision.libraries import enabled_conversions
from validators.facts_rehearsal import LowPrecisionFacts

MODULE = "neobert.rehearsal.turns"
RECIPE, BF16 = "recipe", "bf16"
TURNS = 3
COMPARED = 1
"""Turn whose losses are compared; in later turns losses differ by chance if the learning rate is high."""
TIME_S, MARGIN_S = 300.0, 10.0

Turns = dict[str, list[dict[str, Any]]]


def compare_recipe(
    state: RehearsalState, config: RunConfig, request_time: Callable[[float, str], None], *, has_room: bool
) -> LowPrecisionFacts:
    """Train the run with and without low precision on the same weights and text, and compare speed and loss.

    torchao changes torch's compiler for the whole process, so each runs in its own process. With room for two
    processes on the device they train in turns, otherwise one after the other.

    `request_time(seconds, what)` extends the time limit of the rehearsal; see `Subject`.

    Raises IncompleteError if a process ends early, TimedOutError 5 minutes after its start.
    """
    both = {RECIPE: config, BF16: remove_low_precision(config)}
    groups = [both] if has_room else [{name: each} for name, each in both.items()]
    turns: Turns = {}
    for group in groups:
        request_time(TIME_S + MARGIN_S, "rehearsal: comparing the recipe with bf16")
        turns |= take_turns(state, group, time.monotonic() + TIME_S)
    return LowPrecisionFacts(
        recipe_step_s=_median_step_s(turns[RECIPE]),
        bf16_step_s=_median_step_s(turns[BF16]),
        recipe_loss=_mean_loss(turns[RECIPE][COMPARED]),
        bf16_loss=_mean_loss(turns[BF16][COMPARED]),
        recipe_kernels=turns[RECIPE][COMPARED]["kernels"],
        bf16_kernels=turns[BF16][COMPARED]["kernels"],
    )


def remove_low_precision(config: RunConfig) -> RunConfig:
    """Return the run without low precision, on the kernels that it would then use."""
    off = {each.library.name: replace(each.section, enable=False) for each in enabled_conversions(config)}
    return with_kernels(replace(config, **off), "auto")


def take_turns(state: RehearsalState, group: Mapping[str, RunConfig], deadline_s: float) -> Turns:
    """Train several runs in turns, each in its own process, and return the results of all turns by run.

    All compile at once in their first turn, which is not timed. The order of the later turns alternates.
    """
    with ExitStack() as ends:
        runs = [
            ends.enter_context(start_turn_process(state, name, config, deadline_s))
            for name, config in group.items()
        ]
        for run in runs:
            run.begin(0)
        turns = {run.name: [run.end(0)] for run in runs}
        for number in range(1, TURNS):
            for run in reversed(runs) if number % 2 else runs:
                run.begin(number)
                turns[run.name].append(run.end(number))
    return turns


@dataclass(frozen=True, slots=True)
class TurnProcess:
    """Process that trains some steps in each turn, with a deadline in monotonic seconds."""

    state: RehearsalState
    name: str
    child: subprocess.Popen[bytes]
    deadline_s: float

    def begin(self, number: int) -> None:
        """Let the process start a turn."""
        Path(self.state.folder, f"{self.name}_go_{number}").touch()

    def end(self, number: int) -> dict[str, Any]:
        """Wait for the end of a turn, and return the durations and losses of its steps.

        Raises IncompleteError if the process ends early, TimedOutError after its deadline.
        """
        doing = f"steps in turn {number + 1}" if number else "compiling"
        announce(f"rehearsal: comparing the recipe with bf16 ({self.name}, {doing})")
        result = self.state.folder / f"{self.name}_turn_{number}.json"
        while not result.exists():
            if self.child.poll() is not None and not result.exists():
                raise IncompleteError(f"the run in {self.name} ended with exit code {self.child.returncode}")
            if time.monotonic() > self.deadline_s:
                message = "the comparison of the recipe with bf16 took over"
                raise TimedOutError(f"{message} {TIME_S:g} s and was killed at: {self.name}, {doing}")
            time.sleep(POLL_S)
        return dict(read_json(result))


@contextmanager
def start_turn_process(
    state: RehearsalState, name: str, config: RunConfig, deadline_s: float
) -> Iterator[TurnProcess]:
    """Start a process that trains `config` in turns, and kill it at the end of the block."""
    resolved = state.folder / f"{name}.json"
    resolved.write_text(json.dumps(to_dict(config)), encoding="utf-8")
    command = [sys.executable, "-P", "-m", MODULE, str(resolved), str(state.folder), name]
    with kill_at_exit(lambda: start_trainer_process(command, state.log, state.error_file)) as child:
        try:
            yield TurnProcess(state, name, child, deadline_s)
        finally:
            kill_tree(child)


def _median_step_s(turns: list[dict[str, Any]]) -> float:
    """Return the median duration of a step, in seconds, over all turns but the first."""
    seconds: list[float] = [each for turn in turns[1:] for each in turn["seconds"]]
    return statistics.median(seconds)


def _mean_loss(turn: dict[str, Any]) -> float | None:
    """Return the mean loss of a turn, or None if it is not finite."""
    loss = statistics.fmean(turn["losses"])
    return loss if math.isfinite(loss) else None
