"""Loss plateaus: a training loss that has stopped falling over 1,000 steps or more."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neobert.training.guards.warnings import warn
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

PLATEAU = "loss_plateau"
# Loss falls as tokens ** -0.095 (Kaplan et al. 2020, arXiv:2001.08361). A tenth of that fall is a plateau.
EXPONENT = 0.0095
# The same fall takes four times the steps at four times the age, so the stretch grows with the run.
LEAST_STEPS = 1000
SHARE_OF_STEPS = 0.25
# In each half, so that its spread says what the noise of a mean is.
LEAST_LINES = 8
STANDARD_ERRORS = 2.0


@dataclass(slots=True)
class Mean:
    """A running mean of losses with their spread (Welford)."""

    count: int = 0
    value: float = 0.0
    squares: float = 0.0

    def add(self, loss: float) -> None:
        """Add a loss."""
        self.count += 1
        before = loss - self.value
        self.value += before / self.count
        self.squares += before * (loss - self.value)

    @property
    def variance(self) -> float:
        """Return the squared standard error of the mean, infinite for fewer than two losses."""
        return self.squares / (self.count - 1) / self.count if self.count > 1 else math.inf


class PlateauWatch:
    """A hook for logging steps that compares the halves of a stretch.

    A stretch has 1,000 steps, a quarter of the steps done, or 16 lines, whichever is longest. It is a plateau
    if the mean loss of its later half is above a fall as steps ** -0.0095, by more than two standard errors.
    """

    def __init__(self, logging_steps: int) -> None:
        self._least_steps = max(LEAST_STEPS, 2 * LEAST_LINES * logging_steps)
        self._first_step: int | None = None
        self._halves = Mean(), Mean()

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Warn at the end of a flat stretch."""
        message = self.judge(report.step, report.metrics.get("train/loss"))
        if message:
            warn(trainer, PLATEAU, message)

    def judge(self, step: int, loss: float | None) -> str:
        """Add a line's loss, None where it had no target; return a message at the end of a flat stretch."""
        if self._first_step is None:
            self._first_step = step
        length = max(self._least_steps, int(SHARE_OF_STEPS * self._first_step))
        if loss is not None:
            self._halves[2 * (step - self._first_step) > length].add(loss)
        if step - self._first_step < length:
            return ""
        message = self._message(self._first_step, step)
        self._first_step, self._halves = step, (Mean(), Mean())
        return message

    def _message(self, first_step: int, last_step: int) -> str:
        earlier, later = self._halves
        quarter = (last_step - first_step) / 4
        fallen = ((first_step + 3 * quarter) / (first_step + quarter)) ** -EXPONENT
        noise = math.sqrt(fallen**2 * earlier.variance + later.variance)
        if later.value - fallen * earlier.value <= STANDARD_ERRORS * noise:
            return ""
        return (
            f"loss plateau over steps {first_step:,} to {last_step:,}: mean loss {later.value:.4f} in the "
            f"later half, {earlier.value:.4f} in the earlier (limit {fallen * earlier.value:.4f})"
        )
