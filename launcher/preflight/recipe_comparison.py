"""Comparison of a run in low precision with the same run in bf16, on its own fastest kernels."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.preflight.rehearsal_children import POLL_S, Stage
from launcher.probes.probe import IncompleteError, TimedOutError
from launcher.process.process_tree import kill_tree, killed_at_exit
from launcher.process.trainer_process import start
from launcher.rundir.records import read_json
from launcher.terminal.activity import announce
from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.families.table import with_kernels
from validators.facts_rehearsal import LowPrecisionFacts

MODULE = "neobert.rehearsal.turns"
RECIPE, BF16 = "recipe", "bf16"
ORDER = (RECIPE, BF16, BF16, RECIPE, RECIPE, BF16)
"""Of the turns: each process compiles in its first one, which is not timed."""
COMPARED = 1
"""Turn whose losses are compared. Later ones differ by chance where the learning rate is nearly too high."""
TIME_S = 1200.0


def compare_recipe(stage: Stage, config: RunConfig) -> LowPrecisionFacts:
    """Train both runs from the same weights on the same text, in turns, each in a process of its own.

    torchao changes torch's compiler for the whole process, so one process cannot run both.

    Raises IncompleteError if a process ends early, TimedOutError after 20 minutes.
    """
    turns: dict[str, list[dict[str, Any]]] = {RECIPE: [], BF16: []}
    with ExitStack() as ends:
        runs = {
            name: ends.enter_context(taking_turns(stage, name, each))
            for name, each in ((RECIPE, config), (BF16, without_recipe(config)))
        }
        for name in ORDER:
            announce(f"rehearsal: comparing {config.torchao.recipe} with bf16, turn {len(turns[name]) + 1}")
            turns[name].append(runs[name].turn(len(turns[name])))
    return LowPrecisionFacts(
        recipe_step_s=_median_s(turns[RECIPE]),
        bf16_step_s=_median_s(turns[BF16]),
        recipe_loss=_loss(turns[RECIPE][COMPARED]),
        bf16_loss=_loss(turns[BF16][COMPARED]),
    )


def without_recipe(config: RunConfig) -> RunConfig:
    """Return the run without low precision, on the kernels that it would then have."""
    return with_kernels(replace(config, torchao=replace(config.torchao, enable=False)), "auto")


@dataclass(frozen=True, slots=True)
class TakingTurns:
    """A process that trains some steps whenever it has its turn."""

    stage: Stage
    name: str
    child: subprocess.Popen[bytes]
    deadline_s: float

    def turn(self, number: int) -> dict[str, Any]:
        """Let it train, and return the durations and losses of its steps."""
        result = self.stage.folder / f"{self.name}_turn_{number}.json"
        Path(self.stage.folder, f"{self.name}_go_{number}").touch()
        while not result.exists():
            if self.child.poll() is not None and not result.exists():
                raise IncompleteError(f"the run in {self.name} ended with exit code {self.child.returncode}")
            if time.monotonic() > self.deadline_s:
                raise TimedOutError(f"comparing the recipe with bf16 took over {TIME_S:g} s")
            time.sleep(POLL_S)
        return dict(read_json(result))


@contextmanager
def taking_turns(stage: Stage, name: str, config: RunConfig) -> Iterator[TakingTurns]:
    """Start a process of a run, and kill it at the end of the block."""
    resolved = stage.folder / f"{name}.json"
    resolved.write_text(json.dumps(to_dict(config)), encoding="utf-8")
    command = [sys.executable, "-P", "-m", MODULE, str(resolved), str(stage.folder), name]
    with killed_at_exit(lambda: start(command, stage.log, stage.error_file)) as child:
        try:
            yield TakingTurns(stage, name, child, time.monotonic() + TIME_S)
        finally:
            kill_tree(child)


def _median_s(turns: list[dict[str, Any]]) -> float:
    """Return the median duration of a step, without the first turn."""
    seconds: list[float] = [each for turn in turns[1:] for each in turn["seconds"]]
    return statistics.median(seconds)


def _loss(turn: dict[str, Any]) -> float | None:
    """Return the mean loss of a turn; None if it is not finite."""
    loss = statistics.fmean(turn["losses"])
    return loss if math.isfinite(loss) else None
