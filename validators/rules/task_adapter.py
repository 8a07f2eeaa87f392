"""Task rules: adapters (LoRA) on a frozen encoder."""

from __future__ import annotations

from neobert.adapters.spec import target_modules, unknown_targets
from neobert.config.optimizers import OPTIMIZERS
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plurals import listed
from neobert.printable import printable
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.tasks import with_adapter

MAX_SCALE = 64
"""Factor on the product; published adapters have 1 to 16."""


@rule("TSK008", "adapter-does-not-fit", severity=Severity.FAIL, level=Level.STATIC, tasks=with_adapter)
def adapter_does_not_fit(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An adapter that the model's layers, its weights or the optimizer do not support.

    ## What it does
    With `adapter.type: lora`, requires that `adapter.target_modules` names linear layers of the blocks (`qkv`
    of a NeoBERT, `query` of a BERT), that `adapter.r` is below the smaller side of each of them, that
    `model.pretrained_checkpoint` is set, and that the optimizer is not Muon. Warns if
    `adapter.alpha / adapter.r` is above 64.

    ## Why is this bad?
    An adapter on no layer trains the head alone. Factors of full rank have more weights than the layer that
    they change. Muon orthogonalizes the update of a whole matrix, and a low-rank factor is only a part of
    one. `alpha / r` multiplies the output of the adapter, so a large ratio diverges at any usual learning
    rate. The weights of the encoder are frozen: random ones stay random, and the adapter cannot replace them.

    ## Example
    ```yaml
    adapter:
      type: lora
      target_modules: [query, value]
    ```

    ## Use instead
    ```yaml
    adapter:
      type: lora
      target_modules: [qkv, wo]
    ```
    """
    config = run.config
    if config.adapter.type is None:
        return
    layers = plan.shape.linear_layers
    if not layers:  # GPT-2 multiplies by transposed matrices in modules of its own
        message = "the blocks of this model have no linear layers, to which adapters are added"
        yield Violation("adapter.type", message, "set adapter.type to null, which trains all weights")
        return
    targets, unknown = (
        target_modules(config.adapter, plan.shape),
        [*unknown_targets(config.adapter, plan.shape)],
    )
    if unknown or not targets:
        named = f"{printable(listed(unknown))}, which the blocks lack" if unknown else "no layer"
        hint = f"set adapter.target_modules to layers among {', '.join(layers)}, or to null for all"
        yield Violation("adapter.target_modules", f"target_modules names {named}", hint)
    for name in targets:
        smaller = min(layers[name].inputs, layers[name].outputs)
        if config.adapter.r >= smaller:
            message = f"r {config.adapter.r} is not below {smaller}, the smaller dimension of {name}"
            yield Violation("adapter.r", message, f"set adapter.r below {smaller}, such as 8 or 16")
            break
    if (scale := config.adapter.alpha / config.adapter.r) > MAX_SCALE:
        message = f"alpha {config.adapter.alpha} / r {config.adapter.r} is {scale:g} (at most {MAX_SCALE})"
        hint = f"set adapter.alpha to {2 * config.adapter.r}, twice adapter.r"
        yield Violation("adapter.alpha", message, hint, Severity.WARN)
    if OPTIMIZERS[config.optimizer.name].matrices_by_muon:
        message = f"optimizer {config.optimizer.name} does not support low-rank adapters"
        yield Violation("optimizer.name", message, "set optimizer.name to adamw")
    if initial_weights(config) is None:
        message = "adapter.type is lora, but the frozen encoder starts from random weights"
        hint = "set model.pretrained_checkpoint to a checkpoint of a pretraining run, or adapter.type to null"
        yield Violation("model.pretrained_checkpoint", message, hint)
