"""Optimizer rules: peak learning rates far from the record."""

from __future__ import annotations

from math import sqrt

from neobert.config.optimizers import OPTIMIZERS
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.weights import why_no_weights
from validators.tasks import labelled, of_conversations, of_text

ADAM = ("adamw", "adam")
FAR = 4.0
"""Factor between a rate and the record of its optimizer; recipes of one size differ by about half of it."""

WHOLE = (1e-5 * 1024, 3e-4 * 256)
"""Lowest and highest published product of peak learning rate and hidden size: of RoBERTa-large
(arXiv:1907.11692) and ELECTRA-small (arXiv:2003.10555); BERT-base is between them."""
ADAPTED = (6e-5 * 1536, 5e-4 * 768)
"""LoRA on DeBERTa-XXL and on RoBERTa-base (arXiv:2106.09685)."""
CONTINUED, CONTINUED_TOKENS = (5e-5 * 768 * sqrt(2048 / 192), 5e-4 * 768), 2048 * 512
"""Continued pretraining at this many tokens per step: BioBERT, whose 192 rows are scaled (arXiv:1901.08746),
and domains with RoBERTa (arXiv:2004.10964). The best rate grows with their root (arXiv:2205.10287)."""


def _has_no_record(run: ResolvedRun, plan: Plan) -> str:
    if of_text(spec_of(run.config)):
        return ""
    if run.config.optimizer.name not in ADAM:
        return f"no usual fine-tuning rates are known for optimizer {run.config.optimizer.name}"
    return why_no_weights(run, plan)


@rule(
    "OPT006",
    "rate-far-from-record",
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_has_no_record,
    tasks=lambda task: of_text(task) or of_conversations(task) or labelled(task),
)
def rate_far_from_record(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A peak learning rate far from all published rates for this kind of run and optimizer.

    ## What it does
    Warns if `optimizer.lr` of a new model is below a quarter of the lowest recorded rate of the optimizer, or
    if its product with `model.hidden_size` is above four times the highest recorded one. AdamW's published
    rates are 1e-4 (BERT, arXiv:1810.04805) and 1e-3 at a width of 768 (arXiv:2212.14034); the product counts
    because the best rate falls with the width (arXiv:2203.03466). Lion's rates are a tenth and a third of
    AdamW's (arXiv:2302.06675).

    For labels or conversations from `model.pretrained_checkpoint` with AdamW, both limits are products.
    Published rates for training all weights are 1e-5 at a width of 1,024 (RoBERTa-large, arXiv:1907.11692)
    and 3e-4 at 256 (ELECTRA-small, arXiv:2003.10555); 2e-5 at 4,096 (Llama 2 on conversations,
    arXiv:2307.09288) is 7 % above the second. Rates of LoRA are 6e-5 at 1,536 and 5e-4 at 768
    (arXiv:2106.09685).

    For continued pretraining, the product is divided by the root of the tokens of a step, with which the best
    rate grows (arXiv:2205.10287). Published are 5e-5 with 192 rows (BioBERT, arXiv:1901.08746), 1e-4 with 256
    and 5e-4 with 2,048 (RoBERTa, arXiv:2004.10964), of 512 tokens at a width of 768: a factor of three.
    For Muon and Lion nothing is published, and the limits are an estimate: those of AdamW, by the ratio of
    their pretraining records.

    ## Why is this bad?
    Neither mistake shows in the loss: at a rate too low the model is undertrained, at a rate too high
    clipping hides the divergence. Only a second run at another rate shows what was lost. In fine-tuning, the
    rate of pretraining erases what the encoder has learned, and an adapter at the rate of full fine-tuning
    hardly changes: the loss looks as if the task were hard.

    ## Example
    ```yaml
    optimizer:
      lr: 1e-5   # of a fine-tuning recipe
    ```

    ## Use instead
    ```yaml
    optimizer:
      lr: 6e-4
    ```
    """
    rate, width = run.config.optimizer.lr, plan.shape.hidden_size
    recipe, lowest, highest = _record(run, plan, width)
    if not lowest / FAR <= rate <= highest * FAR:
        yield Violation(
            "optimizer.lr",
            f"optimizer.lr {rate:g} is outside {lowest / FAR:.2g} to {highest * FAR:.2g}, which is four "
            f"times the range recorded for {recipe} at a width of {width:,}",
            f"set optimizer.lr between {lowest:.2g} and {highest:.2g}",
        )


def _record(run: ResolvedRun, plan: Plan, width: int) -> tuple[str, float, float]:
    """Return the kind of training, and its lowest and highest recorded rate at this width."""
    is_fresh, kind = initial_weights(run.config) is None, OPTIMIZERS[run.config.optimizer.name]
    is_adapted = run.config.adapter.type is not None
    if of_text(spec_of(run.config)) and is_fresh:
        return kind.name, kind.lowest_rate, kind.highest_rate_by_width / width
    if of_text(spec_of(run.config)):
        scale = sqrt(plan.tokens_per_step.value / CONTINUED_TOKENS) / width
        if kind.name not in ADAM:
            scale *= kind.highest_rate_by_width / OPTIMIZERS["adamw"].highest_rate_by_width
        if is_adapted:  # as for labels: no rate of adapters is recorded for text
            scale *= ADAPTED[0] / WHOLE[0]
        return "continued pretraining", CONTINUED[0] * scale, CONTINUED[1] * scale
    lowest, highest = ADAPTED if is_adapted else WHOLE
    return "LoRA" if is_adapted else "fine-tuning of all weights", lowest / width, highest / width
