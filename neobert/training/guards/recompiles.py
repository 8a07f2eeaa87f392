"""Recompilations after warm-up, of which a step with static shapes has none."""

from __future__ import annotations

import logging
from collections import Counter
from typing import NamedTuple

from torch._dynamo.utils import counters, get_compilation_metrics

from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)

WARM_UP_STEPS = 3
FIRST_TIME = "first seen"


class Compilation(NamedTuple):
    """A function that was compiled, and the guard that failed before it was."""

    function: str
    reason: str


class CompilationLog:
    """Compilations since the last call of `take`. torch keeps the last 64, of all threads."""

    def __init__(self) -> None:
        self._seen: set[tuple[str | None, int | None]] = set()

    def take(self) -> list[Compilation]:
        """Return compilations of functions, in order. Waits for nothing."""
        # A backward graph is listed beside its forward, without a name.
        entries = [each for each in get_compilation_metrics() if each.co_name is not None]
        keys = [(each.compile_id, each.start_time_us) for each in entries]
        fresh = [each for each, key in zip(entries, keys, strict=True) if key not in self._seen]
        self._seen = set(keys)
        return [Compilation(str(each.co_name), _first_line(each.recompile_reason)) for each in fresh]


def _first_line(reason: str | None) -> str:
    return FIRST_TIME if not reason else " ".join(reason.splitlines()[0].split())


def graph_breaks() -> dict[str, int]:
    """Return how often compiled code was cut in this process, by cause."""
    found: Counter[str] = Counter()
    for cause, count in counters["graph_break"].items():
        found[_first_line(cause)] += count
    return dict(found)


class CompilationWatch:
    """A hook for every step that counts compilations after warm-up and logs their reason."""

    def __init__(self, first_step: int) -> None:
        self._settled_step = first_step + WARM_UP_STEPS
        self._log = CompilationLog()

    def __call__(self, trainer: Trainer, _report: StepReport) -> None:
        """Count late compilations in `trainer.state`, which the heartbeat repeats."""
        step, compiled = trainer.progress.step, self._log.take()
        late = compiled if step > self._settled_step else []
        trainer.state.recompiles = (trainer.state.recompiles or 0) + len(late)
        for each in late:
            log.warning("step %d: %s was compiled after warm-up: %s", step, each.function, each.reason)
