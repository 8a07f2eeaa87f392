"""Comparison of the first evaluation with the parent run, whose weights training starts from."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.families.table import initial_weights, max_row_length
from neobert.metric_names import EVAL_LOSS, SOURCE_LOSS
from neobert.printable import printable
from neobert.runfiles.checkpoint.folders import STEP_NAME
from neobert.runfiles.continuation import PATH, checkpoint_config, find_run_checkpoint
from neobert.runfiles.run_dir import METRICS
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import iter_rows

log = logging.getLogger(__name__)

CODE = "TRN005"
# Measured with cpu-demo at step 700: a rotary base 4.4 times as large, for rows 4 times as long, adds 0.4 %
# to the loss, one 10 times as large 0.7 %; without one of its four blocks the loss is 4 to 62 % higher, and
# with random weights 75 %. The limit is the geometric mean of 0.7 % and 4 %. In a model of
# 8 blocks of width 512, a base 4.2 times as large added 1.0 % (docs/measurements/long-context.json).
LIMIT = 0.017


@dataclass(frozen=True, slots=True)
class FirstLossCheck:
    """Hook that fails the run if the loss before the first step is far above the parent run's.

    Attributes:
        parent: checkpoint that the weights are from.
        loss: loss in the last evaluation of its run up to this checkpoint, on the same documents and masks.
    """

    parent: Path
    loss: float

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Raise `ProjectError` if the loss before the first step is over `LIMIT` above the parent's."""
        found = report.metrics.get(SOURCE_LOSS)
        if trainer.progress.step or found is None or found <= (1 + LIMIT) * self.loss:
            return
        rise = f"{found / self.loss - 1:.1%} above the {self.loss:.4f} of {printable(str(self.parent))}"
        raise ProjectError(
            CODE,
            f"{SOURCE_LOSS} is {found:.4f} before the first step, {rise} (limit {LIMIT:.1%}): the model does "
            "not compute what its weights were trained for",
            "set the keys of section model, above all rope_theta, to the values in the parent run's "
            f"resolved.json; to train anyway, remove {PATH}",
            PATH,
            EXIT_TRAINING_FAILED,
        )


def first_loss_check(config: RunConfig) -> FirstLossCheck | None:
    """Return the hook if the run evaluates on its parent run's evaluation text, else None.

    Also None if the evaluations differ in documents or masks, or if the parent run was not evaluated. Raises
    `ProjectError` CKP007 if the parent run's checkpoint is unusable.
    """
    weights, place = initial_weights(config), config.trainer.eval_source_path
    parent = None if place is None else find_run_checkpoint(Path(place))
    if parent is None or weights is None or Path(weights).resolve() != parent.resolve():
        return None
    if not _has_same_evaluation(config, checkpoint_config(parent)):
        log.info("the first evaluation is not compared with %s, whose evaluation has other targets", parent)
        return None
    whole = parent.resolve()
    step = int(whole.name) if STEP_NAME.fullmatch(whole.name) else -1  # a copy has no metrics next to it
    rows = iter_rows(whole.parents[1] / METRICS)
    losses = [row[EVAL_LOSS] for row in rows if row.get(EVAL_LOSS) is not None and row["step"] <= step]
    return FirstLossCheck(parent, losses[-1]) if losses else None


def _has_same_evaluation(config: RunConfig, parent: RunConfig) -> bool:
    configs = (config, parent)
    rates = {masking_rates(each.datacollator).evaluation for each in configs}
    masks = {(each.task, each.datacollator.mask_all) for each in configs}
    sizes = {each.trainer.per_device_eval_batch_size * max_row_length(each) for each in configs}
    batches = [each.trainer.eval_max_batches for each in configs]
    is_whole = batches == [None, None] or (len(set(batches)) == 1 and len(sizes) == 1)
    return len(rates) == len(masks) == 1 and is_whole and max_row_length(config) >= max_row_length(parent)
