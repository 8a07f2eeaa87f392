"""Keys of low precision by torchao."""

from dataclasses import dataclass
from typing import Literal

from neobert.precision.section import ConversionConfig
from neobert.schema_fields import key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TorchaoConfig(ConversionConfig):
    """8- or 4-bit matrix products of the blocks' linear layers, by torchao; weights stay fp32."""

    recipe: Literal[
        "float8_tensorwise",
        "float8_rowwise",
        "float8_rowwise_with_gw_hp",
        "mxfp8_rceil",
        "mxfp8_rceil_wgrad_with_hp",
        "mxfp8_emulated",
        "nvfp4",
    ] = key(
        "float8_rowwise",
        "torchao's recipe. float8_tensorwise: one scale per tensor. float8_rowwise: one per row; "
        "float8_rowwise_with_gw_hp: the same, with gradients of weights in bf16. mxfp8_rceil: one per 32 "
        "values (Blackwell); mxfp8_rceil_wgrad_with_hp: with gradients of weights in bf16. mxfp8_emulated: "
        "the rounding of mxfp8 without its speed, on any device. nvfp4: four bits, one scale per 16 values, "
        "stochastic rounding of gradients (Blackwell).",
    )
    enable_fsdp_float8_all_gather: bool = key(
        False, "float8_tensorwise with distributed.mode fsdp2: ranks gather converted weights in fp8."
    )
    precompute_float8_dynamic_scale_for_fsdp: bool = key(
        False,
        "With enable_fsdp_float8_all_gather: one all-reduce per step for the scales of all weights, not one "
        "for each.",
    )
