"""Construction of the token objective."""

from __future__ import annotations

from typing import Any

from neobert.config.schedules import MaskingRates
from neobert.config.schema import RunConfig
from neobert.families.backbone import Backbone
from neobert.families.table import max_row_length
from neobert.objectives.objective import target_capacity
from neobert.objectives.tokens import TokenObjective
from neobert.tasks.metric import RANGES


def token_objective_for(
    config: RunConfig, backbone: Backbone, device_type: str, rates: MaskingRates, *, targets_only: bool
) -> TokenObjective:
    """Build the cross-entropy of tokens with the model's kernels.

    `rates` are the targets per token in training and in evaluations, which give the static shapes;
    `targets_only` as in `TokenObjective`.
    """
    trainer = config.trainer
    capacity = _static_capacity(config, device_type, trainer.per_device_train_batch_size, rates.training)
    eval_capacity = _static_capacity(
        config, device_type, trainer.per_device_eval_batch_size, rates.evaluation
    )
    sizes: dict[str, Any] = {
        "capacity": capacity,
        "eval_capacity": eval_capacity,
        "z_loss": trainer.z_loss,
    }
    if backbone.token_objective is not None and capacity is not None:
        built: TokenObjective = backbone.token_objective(backbone, **sizes)
    else:
        built = TokenObjective(backbone, targets_only, **sizes)
    built.by_position = max_row_length(config) > RANGES[1]
    return built


def _static_capacity(config: RunConfig, device_type: str, rows: int, probability: float) -> int | None:
    """Return the number of decoder rows for packed rows on a GPU; None (dynamic shapes) otherwise."""
    if device_type != "cuda" or not config.datacollator.pack_sequences:
        return None
    return target_capacity(rows * max_row_length(config), probability)
