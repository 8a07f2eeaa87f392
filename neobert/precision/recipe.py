"""Recipe: a precision of the computation, as the plan, the rules and the trainer read it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from neobert.precision.library import Conversion


def convert_nothing(_module: Any) -> None:
    """Convert nothing: modules compute in the autocast dtype, or in the dtype of their weights."""


def convert_by_library(conversion: Conversion, seed: int, backbone: Any) -> None:
    """Replace a backbone's linear layers by `neobert.precision.conversion.convert`. Imports torch."""
    import_module("neobert.precision.conversion").convert(conversion, seed, backbone)


def call_shards_function(function: str, conversion: Conversion, module: Any) -> None:
    """Call `before_sharding` or `after_update` of a library's module `shards`. Imports the library."""
    shards = import_module(f"neobert.precision.{conversion.library.name}.shards")
    getattr(shards, function)(conversion.section, module)


class Recipe(NamedTuple):
    """Precision in which a run computes. Weights, their gradients and optimizer state are always fp32.

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
        before_sharding: prepares an objective for FSDP2, which shards it next.
        after_update: called with the prepared objective after each update of the weights.
        conversion: the library that converts, and its section; None: nothing is converted.
    """

    dtype: str
    activation_bytes: int
    weight_copy_bytes: int
    min_capability: tuple[int, int]
    gathered_dtype: str | None = None
    reduced_dtype: str | None = None
    convert: Callable[[Any], None] = convert_nothing
    before_sharding: Callable[[Any], None] = convert_nothing
    after_update: Callable[[Any], None] = convert_nothing
    conversion: Conversion | None = None

    @property
    def is_fp32(self) -> bool:
        """Return whether matrix products are in fp32 (or TF32)."""
        return self.dtype == "float32"


BF16 = Recipe(
    dtype="bfloat16",
    activation_bytes=2,
    weight_copy_bytes=2,
    min_capability=(8, 0),
    gathered_dtype="bfloat16",
    reduced_dtype="float32",
)
"""Matrix products in bf16 by autocast, and gradients reduced in fp32."""
FP32 = Recipe(dtype="float32", activation_bytes=4, weight_copy_bytes=0, min_capability=(0, 0))
"""Matrix products in fp32, or in TF32 where `trainer.tf32` allows it."""
