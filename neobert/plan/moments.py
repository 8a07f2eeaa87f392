"""What the optimizer remembers of each weight."""

from __future__ import annotations

from neobert.config.schema import ADAMS, OptimizerConfig
from neobert.families.shape import ParameterCount
from neobert.plan.derived import Derived

ADAM_MOMENTS = 2


def optimizer_values(optimizer: OptimizerConfig, counts: ParameterCount) -> Derived[int]:
    """Derive the fp32 numbers that the optimizer keeps: Muon has one moment of a matrix of the blocks."""
    values = ADAM_MOMENTS * counts.total
    if optimizer.name in ADAMS:
        return Derived(values, f"two fp32 moments of {counts.total:,} weights")
    rest = counts.total - counts.linear
    return Derived(
        values - counts.linear,
        f"one fp32 moment of {counts.linear:,} weights under Muon, two of {rest:,} under AdamW",
    )
