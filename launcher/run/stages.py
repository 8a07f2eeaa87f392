"""Stages of a run (`train --stages 1,300,1000`): steps at which its metrics are checked.

Training continues during a check. If a check fails, the run saves a checkpoint and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median

from launcher.rundir.live_state import memory_mib
from launcher.rundir.records import MetricsTail, Record, last_heartbeat
from launcher.terminal.values import show_count, show_mib
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.metric_names import PACE, TRAIN_LOSS
from neobert.runfiles.run_dir import METRICS
from neobert.tasks.metric import show_number

PACE_BAND = 0.1
MAX_RISE = 1.1
"""Maximum ratio of the current loss to the first one, e.g. for a run from trained weights."""
MIN_TREND_LINES, MIN_TREND_STEPS = 4, 100
"""Minimum for a check of the loss trend: the loss changes little in the first steps of a long warm-up."""
MIN_FALL_IN_NOISES = 2
"""Required fall of the loss, as a multiple of its median change per line; noise does so in 1 of 16 runs."""
MIN_PACE_LINES = 3
SETTLING_LINES = 2
"""Number of first lines excluded from throughput: kernels are still compiled and caches filled."""
FAILING_WARNINGS = ("allocator_retries", "reserved_memory_creep", "zero_gradient")
LATE_COMPILATIONS = 2
"""Compilations that are always allowed: a resumed session compiles an evaluation and QK-clip later."""
HOW_TO_CONTINUE = "see metrics.jsonl and logs/; to continue anyway: --resume auto, without --stages"


def parse_stages(text: str | None) -> tuple[int, ...]:
    """Parse a list such as `1,300,1000`; None has no stages.

    Raises ProjectError unless the steps are positive integers in increasing order.
    """
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    steps = [int(word) for word in words if word.isascii() and word.isdecimal()]
    if len(steps) < len(words) or sorted({0, *steps}) != [0, *steps]:
        raise _stages_error(
            f"{text!r} is not a list of increasing steps",
            "pass increasing steps, such as --stages 1,300,1000",
        )
    return tuple(steps)


def require_stages(steps: Sequence[int], max_steps: int) -> None:
    """Raise ProjectError for a stage at or after the last step."""
    if steps and steps[-1] >= max_steps:
        message = f"stage {steps[-1]} is not before the last step ({max_steps})"
        raise _stages_error(message, "lower the stage, or raise trainer.max_steps")


def _stages_error(message: str, hint: str) -> ProjectError:
    return ProjectError("bad-stages", message, hint, "--stages", EXIT_USAGE)


@dataclass(frozen=True, slots=True)
class StageData:
    """Data for the check of one stage.

    Attributes:
        lines: lines of training metrics, from the first of the session to the one that reached the stage.
        settled: lines since the previous stage, without the first `SETTLING_LINES` of the session.
        beat: the newest heartbeat of rank 0.
        pace: median tokens per second of the previous stage; None if it was not measured.
        recompiles: number of recompiles at the end of the previous stage.
        must_fall: whether the loss has to fall, as it does from random weights.
    """

    lines: Sequence[Record]
    settled: Sequence[Record]
    beat: Record
    pace: float | None
    recompiles: int
    must_fall: bool

    @property
    def num_steps(self) -> int:
        """Number of steps from the first line to the last."""
        return int(self.lines[-1]["step"] - self.lines[0]["step"])


def find_problem(data: StageData) -> str:
    """Return the reason to stop the run, in one clause; empty if all checks of the stage pass."""
    return _loss_problem(data) or _warning_or_recompile_problem(data) or _pace_problem(data)


def _loss_problem(data: StageData) -> str:
    missing = next((line["step"] for line in data.lines if not _has_finite_loss(line)), None)
    if missing is not None:
        return f"the loss of step {missing} is not a finite number"
    losses = [float(line[TRAIN_LOSS]) for line in data.lines]
    if len(losses) < MIN_TREND_LINES or data.num_steps < MIN_TREND_STEPS:
        return ""
    late, noise = median(losses[-max(1, len(losses) // 4) :]), _loss_noise(losses[len(losses) // 2 :])
    if data.must_fall and losses[0] - late <= MIN_FALL_IN_NOISES * noise:
        return f"the loss does not fall: {losses[0]:.4f} at first, {late:.4f} now (noise {noise:.4f})"
    if late > MAX_RISE * losses[0]:
        return f"the loss rises: {losses[0]:.4f} at first, {late:.4f} now (limit {MAX_RISE * losses[0]:.4f})"
    return ""


def _loss_noise(losses: Sequence[float]) -> float:
    return median(abs(after - before) for before, after in pairwise(losses))


def _has_finite_loss(line: Record) -> bool:
    """Return whether a line has a finite loss. Null values are dropped when a line is read."""
    return TRAIN_LOSS in line and isfinite(line[TRAIN_LOSS])


def _warning_or_recompile_problem(data: StageData) -> str:
    warnings = data.beat.get("warnings") or {}
    counted = [f"{name} {warnings[name]}" for name in FAILING_WARNINGS if warnings.get(name)]
    if counted:
        return f"the trainer warned: {', '.join(counted)} (limit 0)"
    recompiles = int(data.beat.get("recompiles") or 0)
    if recompiles > max(data.recompiles, LATE_COMPILATIONS):
        before = f"{data.recompiles} in the previous stages"
        return f"functions are still being compiled: {recompiles} recompiles, {before}"
    return ""


def _pace_problem(data: StageData) -> str:
    """Return the problem if throughput changed by more than `PACE_BAND`; none on a CPU, where it is noisy."""
    pace = median_pace(data.settled)
    if pace is None or data.pace is None or data.beat.get("gpu_mem_reserved_mib") is None:
        return ""
    if abs(pace - data.pace) > PACE_BAND * data.pace:
        change = f"from {data.pace:,.0f} to {pace:,.0f} tokens/s since the previous stage"
        return f"throughput changed {change} (limit: {PACE_BAND:.0%})"
    return ""


def median_pace(lines: Sequence[Record]) -> float | None:
    """Return the median tokens per second, or None if fewer than `MIN_PACE_LINES` lines report them."""
    paces = [line[PACE] for line in lines if line.get(PACE) is not None]
    return median(paces) if len(paces) >= MIN_PACE_LINES else None


class Stages:
    """Checks on one launch's remaining stages."""

    def __init__(
        self,
        folder: Path,
        steps: Sequence[int],
        after_step: int,
        log: Callable[[str], None],
        *,
        has_weights: bool = False,
    ) -> None:
        """Check the stages after `after_step` in the metrics of run directory `folder`.

        Args:
            after_step: step of the checkpoint that the run resumes from; -1 for none.
            has_weights: whether a run without such a checkpoint starts from trained weights.
        """
        self.failure = ""
        self._folder, self._log = folder, log
        self._must_fall = after_step < 0 and not has_weights
        self._left = [step for step in steps if step > after_step]
        self._tail = MetricsTail(folder / METRICS, after_step)
        self._tail.skip_existing()
        self._lines: list[Record] = []
        self._judged, self._recompiles = 0, 0
        self._pace: float | None = None

    def check_reached_stages(self) -> bool:
        """Check the stages reached since the last call; return whether one of them failed."""
        if self.failure or not self._left:
            return False
        return any(PACE in line and self._check_line(line) for line in self._tail.read_new())

    def _check_line(self, line: Record) -> bool:
        self._lines.append(line)
        if self._left and line["step"] >= self._left[0]:
            self._check_stage(self._left.pop(0))
        return bool(self.failure)

    def _check_stage(self, stage: int) -> None:
        beat, settled = last_heartbeat(self._folder, 0), self._lines[max(self._judged, SETTLING_LINES) :]
        seen = StageData(self._lines, settled, beat, self._pace, self._max_recompiles(beat), self._must_fall)
        problem = find_problem(seen)
        if problem:
            self.failure = f"stage {stage} failed: {problem}; {HOW_TO_CONTINUE}"
            return
        self._pace = median_pace(settled) or self._pace
        self._recompiles, self._judged = int(beat.get("recompiles") or 0), len(self._lines)
        self._log(f"stage {stage} passed{self._figures_text(beat)}")

    def _max_recompiles(self, beat: Record) -> int:
        """Return the allowed number of recompiles: the previous stage's; in the first stage, any number."""
        return self._recompiles if self._judged else int(beat.get("recompiles") or 0)

    def _figures_text(self, beat: Record) -> str:
        first, last = self._lines[0], self._lines[-1]
        losses = (
            f"loss {show_number(first[TRAIN_LOSS])} -> {show_number(last[TRAIN_LOSS])} at step {last['step']}"
        )
        return f": {losses}, {show_count(last.get(PACE))} tokens/s, memory {show_mib(memory_mib(beat))}"
