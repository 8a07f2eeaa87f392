"""Optimizer rules: coefficients of the optimizer, and keys that it does not use."""

from __future__ import annotations

import math

from neobert.config import RunConfig, all_keys
from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig
from neobert.families.shape import ModelShape
from neobert.families.table import initial_weights
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

SMALLEST_STEP, LARGEST_STEP = 0.0025, 0.25
"""Shares of a weight's initial size that one update at the peak rate may change: below the first, a fresh run
makes no progress in its warm-up; above the second, four steps replace the weights."""
MATCHED_RMS = 0.2
"""RMS of an update at rate 1 with `match_rms_adamw`."""
RECIPE_RATE, RECIPE_RATE_TINY, TINY_WIDTH = 4e-3, 8e-3, 192
"""Rates of Muon with `match_rms_adamw` that won at widths 512 and 768, and at 192 (docs/learning.md)."""


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
    """A Muon learning rate for the other way of scaling updates.

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
    if not OPTIMIZERS[optimizer.name].matrices_by_muon:
        return
    share, is_fresh = _share_of_a_step(run.config, plan.shape), initial_weights(run.config) is None
    if share > LARGEST_STEP or (is_fresh and share < SMALLEST_STEP):
        path = "optimizer.lr" if optimizer.muon_lr is None else "optimizer.muon_lr"
        rate, scaling = optimizer.muon_lr or optimizer.lr, optimizer.muon_adjust_lr_fn
        yield Violation(
            path,
            f"{path} {rate:g} with {scaling} changes a hidden matrix by {100 * share:.3g}% of its size "
            f"per step ({SMALLEST_STEP:.2%} to {LARGEST_STEP:.0%} is usual)",
            f"set {path} to {_rate_of_recipe(optimizer, plan.shape.hidden_size):.2g}, "
            f"the recipe's rate for {scaling} at this width",
        )


def _share_of_a_step(config: RunConfig, shape: ModelShape) -> float:
    """Return the RMS of a Muon update relative to that of the initial weights."""
    optimizer = config.optimizer
    update = (optimizer.muon_lr or optimizer.lr) * _update_rms(optimizer, shape.hidden_size)
    return update / shape.initial_rms


def _update_rms(optimizer: OptimizerConfig, hidden: int) -> float:
    """Return the RMS of an update at rate 1. An orthogonal D x D matrix has an RMS of 1 / sqrt(D)."""
    return MATCHED_RMS if optimizer.muon_adjust_lr_fn == "match_rms_adamw" else 1 / math.sqrt(hidden)


def _rate_of_recipe(optimizer: OptimizerConfig, hidden: int) -> float:
    """Return the rate with which an update has the size of the recipe's."""
    matched = RECIPE_RATE_TINY if hidden <= TINY_WIDTH else RECIPE_RATE
    return matched * MATCHED_RMS / _update_rms(optimizer, hidden)


@rule("OPT003", "unread-optimizer-key", severity=Severity.WARN, level=Level.STATIC)
def unread_optimizer_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An optimizer key that the selected optimizer does not use.

    ## What it does
    Reports each key of `optimizer` that a file or the command line sets, but `optimizer.name` does not
    use: `muon_*` with adamw, `qk_clip_*` without muonclip, `eps` with lion. A file with all keys, such as
    the `resolved.json` of a run, is left out.

    ## Why is this bad?
    The author of the key believes that attention logits are clipped, or that Muon trains the matrices,
    and interprets the results that way.

    ## Example
    ```yaml
    optimizer:
      name: muon
      qk_clip_threshold: 30.0
    ```

    ## Use instead
    ```yaml
    optimizer:
      name: muonclip
      qk_clip_threshold: 30.0
    ```
    """
    name = run.config.optimizer.name
    paths = [key for key in all_keys() if key.startswith("optimizer.")]
    given = {path for path in paths if run.origin(path).kind in ("file", "override")}
    if given.issuperset(paths):
        return
    for path in paths:
        key = path.removeprefix("optimizer.")
        if key == "name" or key in OPTIMIZERS[name].keys:
            continue
        if path in given:
            reader = next(kind.name for kind in OPTIMIZERS.values() if key in kind.keys)
            message = f"{path} has no effect: optimizer.name is {name}"
            yield Violation(path, message, f"set optimizer.name to {reader}, or remove {path}")
