"""Gathering of sharded weights in fp8. Imports torch and torchao.

FSDP2 calls a hook of a parameter's local shard for the tensor to send. The hook of torchao's tensor class
returns a copy in fp8. Weights take that class right before they are sharded, and whatever stores or updates
them reads the tensor within (`neobert.parallel.sharding.local_shard`): neither checkpoints nor optimizers see
the class.
"""

from __future__ import annotations

from torch import nn
from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor

from neobert.precision.torchao.section import TorchaoConfig


def before_sharding(section: TorchaoConfig, objective: nn.Module) -> None:  # noqa: ARG001
    """Wrap the weights of converted layers so that FSDP2 gathers them in fp8."""
    for module in objective.modules():
        if isinstance(module, Float8Linear):
            weight, dtype = module.weight, module.config.cast_config_weight.target_dtype
            sent = WeightWithDynamicFloat8CastTensor(weight.detach(), module.linear_mm_config, dtype)
            module.weight = nn.Parameter(sent, weight.requires_grad)


def after_update(section: TorchaoConfig, objective: nn.Module) -> None:
    """Compute the scales of all weights at once, instead of each when it is gathered."""
    if section.precompute_float8_dynamic_scale_for_fsdp:
        precompute_float8_dynamic_scale_for_fsdp(objective)
