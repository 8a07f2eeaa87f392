"""Optimizer state per weight, from the table of optimizers."""

from __future__ import annotations

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig
from neobert.families.shape import ParameterCount
from neobert.plan.derived import Derived

NUMBERS = {0: "no fp32 moment", 1: "one fp32 moment", 2: "two fp32 moments"}


def optimizer_values(optimizer: OptimizerConfig, counts: ParameterCount) -> Derived[int]:
    """Derive the fp32 numbers that the optimizer keeps; `counts.linear` are the matrices of the blocks."""
    kind, rest = OPTIMIZERS[optimizer.name], counts.total - counts.linear
    values = kind.matrix_moments * counts.linear + kind.moments * rest
    if kind.matrix_moments == kind.moments:
        return Derived(values, f"{NUMBERS[kind.moments]} of {counts.total:,} weights")
    return Derived(
        values,
        f"{NUMBERS[kind.matrix_moments]} of {counts.linear:,} weights under Muon, "
        f"{NUMBERS[kind.moments].split()[0]} of {rest:,} under AdamW",
    )
