"""Optimizer rules: learning rates and coefficients of the optimizer, and keys that it does not use."""

from __future__ import annotations

import math
from math import log, sqrt

from neobert.config import RunConfig
from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig, TrainerConfig
from neobert.families.shape import ModelShape
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import is_shortened_by_override
from validators.rule import Violations, rule
from validators.rules.weights import why_no_weights
from validators.tasks import has_labels, predicts_text_tokens, trains_on_conversations

SMALLEST_STEP, LARGEST_STEP = 0.0025, 0.25
"""Limits on one update at the peak rate, as shares of a weight's initial size: below the first, a new run
makes no progress in its warm-up; above the second, four steps replace the weights."""
MATCHED_RMS = 0.2
"""RMS of an update at learning rate 1 with `match_rms_adamw`."""
RECIPE_RATE, RECIPE_RATE_TINY, TINY_WIDTH = 4e-3, 8e-3, 192
"""Best learning rates of Muon with `match_rms_adamw` at widths 512 and 768, and at 192 (docs/learning.md)."""

ADAM = ("adamw", "adam")
FAR = 4.0
"""Factor between a rate and the record of its optimizer; recipes of one size differ by about half of it."""

WHOLE = (1e-5 * 1024, 3e-4 * 256)
"""Lowest and highest published product of peak learning rate and hidden size: of RoBERTa-large
(arXiv:1907.11692) and ELECTRA-small (arXiv:2003.10555); BERT-base is between them."""
ADAPTED = (6e-5 * 1536, 5e-4 * 768)
"""Lowest and highest published product of LoRA, on DeBERTa-XXL and on RoBERTa-base (arXiv:2106.09685)."""
CONTINUED, CONTINUED_TOKENS = (5e-5 * 768 * sqrt(2048 / 192), 5e-4 * 768), 2048 * 512
"""Continued pretraining at this many tokens per step: BioBERT, whose 192 rows are scaled (arXiv:1901.08746),
and domains with RoBERTa (arXiv:2004.10964). The best rate grows with their root (arXiv:2205.10287)."""

MIN_SHARE, HOPELESS_SHARE = 0.5, 0.1
"""Minimum mean step of Adam, as a share of the learning rate."""
USUAL_NORM = 1.0
"""Norm of the global gradient in a healthy run; a clip above it is rarely active and bounds nothing."""
USUAL_EPSILON = OptimizerConfig().eps
MIN_EPSILON = 1e-20
"""The square of a gradient of 1e-21 is 0 in fp32: its update is the first moment over epsilon alone."""
MAX_ERASED, RUINOUS = 0.005, 0.05
"""Share of a matrix that decay removes in one step at the peak rate. In equilibrium a step rotates it by the
square root of twice that: by 0.1 and by 0.32 of its length."""

MAX_PULL, OVERWHELMING_PULL = 0.1, 1.0
"""Maximum ratio of logit gradients: 2 z logsumexp softmax of the z-loss to softmax of the cross-entropy."""


@rule("OPT001", "swapped-betas", severity=Severity.WARN, level=Level.STATIC)
def swapped_betas(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A first-moment beta that is larger than the second-moment beta.

    ## What it does
    Warns if the first of `optimizer.betas` is above the second. Their bounds are part of the schema
    (CFG003).

    ## Why is this bad?
    Adam divides a mean gradient by the root of a mean square. If the square decays faster than the
    mean, one small gradient makes the step explode. The usual cause is two numbers in the wrong order.

    ## Example
    ```yaml
    optimizer:
      betas: [0.999, 0.9]
    ```

    ## Use instead
    ```yaml
    optimizer:
      betas: [0.9, 0.999]
    ```
    """
    optimizer = run.config.optimizer
    first, second = optimizer.betas
    if "betas" in OPTIMIZERS[optimizer.name].keys and first > second:
        yield Violation(
            "optimizer.betas",
            f"betas [{first:g}, {second:g}] look swapped",
            f"set optimizer.betas to [{second:g}, {first:g}]",
        )


@rule("OPT002", "muon-rate-out-of-band", severity=Severity.WARN, level=Level.STATIC)
def muon_rate_out_of_band(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A Muon learning rate that does not fit how updates are scaled.

    ## What it does
    Computes the share of its initial size by which an update at the peak rate changes a square matrix of the
    blocks, from the rate, `optimizer.muon_adjust_lr_fn`, `model.hidden_size`, `model.init` and
    `model.decoder_init_range`. Warns above 25 %, and below 0.25 % unless the run starts from a checkpoint.

    ## Why is this bad?
    An orthogonal update has the same size for every gradient, so the rate alone determines the step size.
    Usual rates are near 0.02 with `original`, and the rates of AdamW with `match_rms_adamw`: if the two are
    confused, the run diverges or hardly moves.

    ## Example
    ```yaml
    optimizer:
      name: muon
      muon_lr: 0.02
      muon_adjust_lr_fn: match_rms_adamw
    ```

    ## Use instead
    ```yaml
    optimizer:
      name: muon
      muon_lr: 0.004
      muon_adjust_lr_fn: match_rms_adamw
    ```
    """
    optimizer = run.config.optimizer
    if not OPTIMIZERS[optimizer.name].updates_matrices_by_muon:
        return
    share, is_fresh = _relative_update_rms(run.config, plan.shape), initial_weights(run.config) is None
    if share > LARGEST_STEP or (is_fresh and share < SMALLEST_STEP):
        path = "optimizer.lr" if optimizer.muon_lr is None else "optimizer.muon_lr"
        rate, scaling = optimizer.muon_lr or optimizer.lr, optimizer.muon_adjust_lr_fn
        yield Violation(
            path,
            f"{path} {rate:g} with {scaling} changes a hidden matrix by {100 * share:.3g}% of its size "
            f"per step ({SMALLEST_STEP:.2%} to {LARGEST_STEP:.0%} is usual)",
            f"set {path} to {_recipe_rate(optimizer, plan.shape.hidden_size):.2g}, "
            f"the recipe's rate for {scaling} at this width",
        )


def _relative_update_rms(config: RunConfig, shape: ModelShape) -> float:
    """Return the RMS of a Muon update relative to the RMS of the initial weights."""
    optimizer = config.optimizer
    update = (optimizer.muon_lr or optimizer.lr) * _update_rms(optimizer, shape.hidden_size)
    return update / shape.initial_rms


def _update_rms(optimizer: OptimizerConfig, hidden: int) -> float:
    """Return the RMS of an update at rate 1. An orthogonal D x D matrix has an RMS of 1 / sqrt(D)."""
    return MATCHED_RMS if optimizer.muon_adjust_lr_fn == "match_rms_adamw" else 1 / math.sqrt(hidden)


def _recipe_rate(optimizer: OptimizerConfig, hidden: int) -> float:
    """Return the learning rate at which an update has the size of the recipe's updates."""
    matched = RECIPE_RATE_TINY if hidden <= TINY_WIDTH else RECIPE_RATE
    return matched * MATCHED_RMS / _update_rms(optimizer, hidden)


def _why_no_recorded_rate(run: ResolvedRun, plan: Plan) -> str:
    if predicts_text_tokens(spec_of(run.config)):
        source = run.config.trainer.eval_source_path
        is_own = source is not None and source == initial_weights(run.config)
        return "the run extends the context: its rate is a share of the original run's" if is_own else ""
    if run.config.optimizer.name not in ADAM:
        return f"no usual fine-tuning rates are known for optimizer {run.config.optimizer.name}"
    return why_no_weights(run, plan)


@rule(
    "OPT006",
    "rate-far-from-record",
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_why_no_recorded_rate,
    tasks=lambda task: predicts_text_tokens(task) or trains_on_conversations(task) or has_labels(task),
)
def _rate_far_from_record(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    For Muon and Lion nothing is published; the limits are an estimate: AdamW's limits, by the ratio of the
    pretraining records. Longer rows (`init --context`), whose `trainer.eval_source_path` is the
    checkpoint itself, have the rate of its run.

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
    recipe, lowest, highest = _recorded_rates(run, plan, width)
    if not lowest / FAR <= rate <= highest * FAR:
        yield Violation(
            "optimizer.lr",
            f"optimizer.lr {rate:g} is outside {lowest / FAR:.2g} to {highest * FAR:.2g}, which is four "
            f"times the range recorded for {recipe} at a width of {width:,}",
            f"set optimizer.lr between {lowest:.2g} and {highest:.2g}",
        )


def _recorded_rates(run: ResolvedRun, plan: Plan, width: int) -> tuple[str, float, float]:
    """Return the kind of training and its lowest and highest published learning rate at this width."""
    is_fresh, kind = initial_weights(run.config) is None, OPTIMIZERS[run.config.optimizer.name]
    is_adapted = run.config.adapter.type is not None
    if predicts_text_tokens(spec_of(run.config)) and is_fresh:
        return kind.name, kind.lowest_rate, kind.highest_rate_by_width / width
    if predicts_text_tokens(spec_of(run.config)):
        scale = sqrt(plan.tokens_per_step.value / CONTINUED_TOKENS) / width
        if kind.name not in ADAM:
            scale *= kind.highest_rate_by_width / OPTIMIZERS["adamw"].highest_rate_by_width
        if is_adapted:  # as for labels: no rate of adapters is recorded for text
            scale *= ADAPTED[0] / WHOLE[0]
        return "continued pretraining", CONTINUED[0] * scale, CONTINUED[1] * scale
    lowest, highest = ADAPTED if is_adapted else WHOLE
    return "LoRA" if is_adapted else "fine-tuning of all weights", lowest / width, highest / width


@rule("OPT005", "drowned-gradient", severity=Severity.FAIL, level=Level.STATIC)
def _drowned_gradient(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An epsilon, weight decay or z-loss that overwhelms the gradient.

    ## What it does
    A gradient of norm c over N weights has an RMS of at most c / sqrt(N), where c is
    `trainer.gradient_clipping`, or 1 if that is null or larger. With an `optimizer.eps` of the same
    size, AdamW's mean step is half of the learning rate: warns below that, fails below a tenth. Fails if
    `optimizer.eps` is below 1e-20. Also computes the share of a matrix that weight decay removes per step
    at the peak rate: warns above 0.5 %, fails above 5 %. Compares the gradient of `trainer.z_loss` by a logit
    with the gradient of the cross-entropy, 2 z ln(V) before the first step: warns above 0.1, fails above 1.

    ## Why is this bad?
    AdamW with a large epsilon is gradient descent at an unintended rate; a tiny clipping norm has the same
    effect. Without epsilon, a gradient whose square is 0 in fp32 gives an update of any size, and a gradient
    of 0 gives NaN. Decay that removes what a hundred steps have learned leaves noise, and a rehearsal is too
    short to show it.

    ## Example
    ```yaml
    optimizer:
      eps: 1e-3
      weight_decay: 100
    ```

    ## Use instead
    ```yaml
    optimizer:
      eps: 1e-8
      weight_decay: 0.1
    ```
    """
    optimizer = run.config.optimizer
    if "eps" in OPTIMIZERS[optimizer.name].keys:
        yield from _epsilon_violations(optimizer, run.config.trainer, plan.num_parameters.value)
    yield from _decay_violations(optimizer)
    yield from _z_loss_violations(run.config.trainer.z_loss, plan.vocab_size.value)


def _epsilon_violations(
    optimizer: OptimizerConfig, trainer: TrainerConfig, num_parameters: int
) -> Violations:
    if optimizer.eps < MIN_EPSILON:
        yield Violation(
            "optimizer.eps",
            f"optimizer.eps {optimizer.eps:g} is below {MIN_EPSILON:g}: squares of gradients that small "
            "are 0 in fp32, and their updates are of any size",
            f"set optimizer.eps to {USUAL_EPSILON:g}, the usual value",
        )
    norm = min(USUAL_NORM, trainer.gradient_clipping or USUAL_NORM)
    gradient = norm / sqrt(num_parameters)
    share = gradient / (gradient + optimizer.eps)
    if share >= MIN_SHARE:
        return
    is_clipped = norm / USUAL_NORM < USUAL_EPSILON / optimizer.eps
    yield Violation(
        "trainer.gradient_clipping" if is_clipped else "optimizer.eps",
        f"a gradient of norm {norm:g} is {gradient:.2g} per weight, but optimizer.eps is {optimizer.eps:g}: "
        f"AdamW's mean step is {share:.2%} of the learning rate",
        "set trainer.gradient_clipping to 1.0 and optimizer.eps to 1e-8, the usual values",
        None if share < HOPELESS_SHARE else Severity.WARN,
    )


def _decay_violations(optimizer: OptimizerConfig) -> Violations:
    kind = OPTIMIZERS[optimizer.name]
    if kind.decay == "l2":  # the penalty goes through the moments and removes no fixed share of a weight
        return
    rate = optimizer.muon_lr or optimizer.lr if kind.updates_matrices_by_muon else optimizer.lr
    erased = round(rate * optimizer.weight_decay, 12)  # the product of 0.05 and 0.1 exceeds 0.005 by 1e-18
    if erased <= MAX_ERASED:
        return
    half = f"an update decays to half in {log(2) / erased:,.0f} steps"
    yield Violation(
        "optimizer.weight_decay",
        f"at the peak rate of {rate:g} each step removes {erased:.2%} of every matrix"
        + (f": {half}" if erased < 1 else ""),
        f"set optimizer.weight_decay to {MAX_ERASED / rate:.2g} or less; 0.01 to 0.1 is usual",
        None if erased > RUINOUS else Severity.WARN,
    )


def _z_loss_violations(z_loss: float, vocab_size: int) -> Violations:
    pull = 2 * z_loss * log(vocab_size)
    if pull <= MAX_PULL:
        return
    yield Violation(
        "trainer.z_loss",
        f"trainer.z_loss {z_loss:g} has {pull:.2g} times the logit gradient of the cross-entropy "
        f"(at most {MAX_PULL:g})",
        "set trainer.z_loss to 1e-4, the usual value",
        None if pull > OVERWHELMING_PULL else Severity.WARN,
    )


@rule("OPT007", "moment-longer-than-run", severity=Severity.WARN, level=Level.STATIC, production_only=True)
def _moment_longer_than_run(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A second moment of Adam that averages over more steps than the run has.

    ## What it does
    Adam's second moment averages squared gradients over about 1 / (1 - beta2) steps: 1,000 for a beta2 of
    0.999, 20 for 0.95. Warns if `trainer.max_steps` is lower, unless only the command line made it so.

    ## Why is this bad?
    The gradients of the first steps are by far the largest. If the run ends before the average forgets them,
    they make every later update smaller than the learning rate suggests. A warm-up of 2 / (1 - beta2) steps,
    the usual recommendation (arXiv:1910.04209), would be longer than the run.

    ## Example
    ```yaml
    optimizer:
      betas: [0.9, 0.999]
    trainer:
      max_steps: 500
    ```

    ## Use instead
    ```yaml
    optimizer:
      betas: [0.9, 0.95]
    trainer:
      max_steps: 500
    ```
    """
    optimizer, max_steps = run.config.optimizer, run.config.trainer.max_steps
    window = 1 / (1 - optimizer.betas[1])
    is_used = "eps" in OPTIMIZERS[optimizer.name].keys and not is_shortened_by_override(
        run, "optimizer.betas"
    )
    if is_used and max_steps < window:
        yield Violation(
            "optimizer.betas",
            f"beta2 {optimizer.betas[1]:g} averages squared gradients over {window:,.0f} steps, but "
            f"trainer.max_steps is {max_steps:,}",
            f"set optimizer.betas to [{optimizer.betas[0]:g}, 0.95]",
        )
