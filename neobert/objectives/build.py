"""Construction of the objective of masked tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.families.backbone import Backbone
from neobert.families.table import longest_row
from neobert.objectives.objective import target_capacity
from neobert.objectives.tokens import TokenObjective


def build_objective(config: RunConfig, backbone: Backbone, device_type: str) -> TokenObjective:
    """Build the cross-entropy of masked tokens with the model's kernels."""
    trainer, rates = config.trainer, masking_rates(config.datacollator)
    capacity = _capacity(config, device_type, trainer.per_device_train_batch_size, rates.training)
    eval_capacity = _capacity(config, device_type, trainer.per_device_eval_batch_size, rates.evaluation)
    build: Callable[..., TokenObjective] = partial(
        TokenObjective, targets_only=trainer.masked_logits_only_loss
    )
    if backbone.token_objective is not None and capacity is not None:
        build = backbone.token_objective
    return build(backbone, capacity=capacity, eval_capacity=eval_capacity, z_loss=trainer.z_loss)


def _capacity(config: RunConfig, device_type: str, rows: int, probability: float) -> int | None:
    """Return the static number of decoder rows for packed rows on a GPU; None (dynamic) otherwise."""
    if device_type != "cuda" or not config.datacollator.pack_sequences:
        return None
    return target_capacity(rows * longest_row(config), probability)
