"""Optimizer rules: rates of fine-tuning far from the record."""

from __future__ import annotations

from typing import NamedTuple

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.data import why_no_weights
from validators.rules.optimizer_coefficients import FAR
from validators.tasks import labelled

ADAM = ("adamw", "adam")


class Record(NamedTuple):
    """Lowest and highest published product of peak learning rate and hidden size."""

    lowest: float
    highest: float


WHOLE = Record(1e-5 * 1024, 3e-4 * 256)
"""RoBERTa-large (arXiv:1907.11692) and ELECTRA-small (arXiv:2003.10555); BERT-base is between them."""
ADAPTED = Record(6e-5 * 1536, 5e-4 * 768)
"""LoRA on DeBERTa-XXL and on RoBERTa-base (arXiv:2106.09685)."""


def _has_no_record(run: ResolvedRun, plan: Plan) -> str:
    if run.config.optimizer.name not in ADAM:
        return f"no usual fine-tuning rates are known for optimizer {run.config.optimizer.name}"
    return why_no_weights(run, plan)


@rule(
    "OPT008",
    "fine-tuning-rate-far-from-record",
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_has_no_record,
    tasks=labelled,
)
def fine_tuning_rate_far_from_record(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A peak learning rate of fine-tuning far from all published rates.

    ## What it does
    Warns if a run of a labelled task from `model.pretrained_checkpoint` with AdamW has a product of
    `optimizer.lr` and `model.hidden_size` below a quarter of the lowest recorded one, or above four times the
    highest. Published rates for training all weights are 1e-5 at a width of 1,024 (RoBERTa-large,
    arXiv:1907.11692) and 3e-4 at 256 (ELECTRA-small, arXiv:2003.10555); of LoRA 6e-5 at 1,536 and 5e-4 at 768
    (arXiv:2106.09685).

    ## Why is this bad?
    The rate of pretraining erases what the encoder has learned, and the model ends near the majority class.
    An adapter at the rate of full fine-tuning hardly changes. In both cases the loss looks as if the task
    were hard.

    ## Example
    ```yaml
    task: classification
    model:
      pretrained_checkpoint: runs/base/checkpoints/latest
    optimizer:
      lr: 6e-4   # of pretraining
    ```

    ## Use instead
    ```yaml
    task: classification
    model:
      pretrained_checkpoint: runs/base/checkpoints/latest
    optimizer:
      lr: 5e-5
    ```
    """
    is_adapted = run.config.adapter.type is not None
    record = ADAPTED if is_adapted else WHOLE
    rate, width = run.config.optimizer.lr, plan.shape.hidden_size
    lowest, highest = record.lowest / width, record.highest / width
    if not lowest / FAR <= rate <= highest * FAR:
        kind = "LoRA" if is_adapted else "fine-tuning of all weights"
        yield Violation(
            "optimizer.lr",
            f"optimizer.lr {rate:g} is outside {lowest / FAR:.2g} to {highest * FAR:.2g}, which is four "
            f"times the range recorded for {kind} at a width of {width:,}",
            f"set optimizer.lr between {lowest:.2g} and {highest:.2g}",
        )
