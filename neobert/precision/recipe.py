"""Recipe: a precision of the computation, as the plan, the rules and the trainer read it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


def keep_modules(_backbone: Any) -> None:
    """Convert nothing: modules compute in the type of autocast, or in that of their weights."""


def converting(module: str, section: Any, backbone: Any) -> None:
    """Convert a backbone by the function `convert` of a module, which imports torch and a library."""
    import_module(module).convert(section, backbone)


class Recipe(NamedTuple):
    """Precision in which a run computes. Weights, their gradients and optimizer state are fp32 in all.

    Types are torch's names.

    Attributes:
        dtype: type of matrix products and of autocast; without autocast if it is float32.
        activation_bytes: bytes of an activation in that type.
        weight_copy_bytes: bytes of the copy of a weight in that type; 0 without a copy.
        min_capability: compute capability from which GPUs have units for that type.
        gathered_dtype: type in which FSDP2 gathers the weights of blocks whose residual stream has that type
            (`neobert.plan.sharding`); None: as they are.
        reduced_dtype: type in which FSDP2 reduces gradients; None: as they are.
        convert: replaces modules in the blocks of a backbone in place. `prepare_model` says when.
        low_products: types of the matrix products of converted modules; empty without conversion.
    """

    dtype: str
    activation_bytes: int
    weight_copy_bytes: int
    min_capability: tuple[int, int]
    gathered_dtype: str | None = None
    reduced_dtype: str | None = None
    convert: Callable[[Any], None] = keep_modules
    low_products: frozenset[str] = frozenset()

    @property
    def is_fp32(self) -> bool:
        """Return whether matrix products are in fp32 (or TF32)."""
        return self.dtype == "float32"
