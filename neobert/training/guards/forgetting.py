"""Warning that a run forgets the text that its weights were trained on before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from neobert.metric_names import SOURCE_LOSS
from neobert.runfiles.run_dir import METRICS
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import read_rows

FORGETTING = "forgetting"
# Loss falls as tokens ** -0.095 (Kaplan et al. 2020, arXiv:2001.08361): a model of half the text has a loss
# that is 7 % higher. The exponent is one of next tokens: for masked tokens, the limit is an estimate.
LIMIT = 2**0.095
MIX = "to forget less, add the old text (dataset.mixture) or lower optimizer.lr"


@dataclass(slots=True)
class ForgettingWatch:
    """Hook that warns once a session if the loss on the source text exceeds `LIMIT` times its first value.

    Attributes:
        first: loss before the first step; None if it was not evaluated yet.
    """

    first: float | None = None
    has_warned: bool = False

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Compare this step's loss on the source text, if there is one."""
        loss = report.metrics.get(SOURCE_LOSS)
        if loss is None:
            return
        if self.first is None:
            self.first = loss
        if loss > LIMIT * self.first and not self.has_warned:
            rise = f"rose by {loss / self.first - 1:.0%} (limit {LIMIT - 1:.0%})"
            trainer.state.warn(FORGETTING, f"{SOURCE_LOSS} {rise} from {self.first:.4f} to {loss:.4f}: {MIX}")
            self.has_warned = True


def forgetting_watch(run_dir: Path) -> ForgettingWatch:
    """Return the watch, with the first loss in metrics.jsonl if the run resumes."""
    path = run_dir / METRICS
    losses = (row.get(SOURCE_LOSS) for row in (read_rows(path) if path.exists() else ()))
    return ForgettingWatch(next((loss for loss in losses if loss is not None), None))
