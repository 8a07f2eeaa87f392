"""Keys of low precision by Transformer Engine."""

from dataclasses import dataclass
from typing import Literal

from neobert.precision.section import ConversionConfig
from neobert.schema_fields import key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TransformerEngineConfig(ConversionConfig):
    """8- or 4-bit matrix products of the blocks' linear layers, by Transformer Engine; weights stay fp32."""

    recipe: Literal["fp8_current", "fp8_block", "mxfp8", "nvfp4"] = key(
        "fp8_current",
        "Transformer Engine's recipe. fp8_current: one scale per tensor. fp8_block: one per 128 values of an "
        "activation and 128 x 128 of a weight (CUDA 12.9). mxfp8: one per 32 values (B200). nvfp4: "
        "four bits, one scale per 16 values (Blackwell).",
    )
    fp8_format: Literal["HYBRID", "E4M3"] | None = key(
        None,
        "Types of fp8. E4M3: for all tensors. HYBRID: E5M2 for gradients. null: the recipe's own, HYBRID for "
        "fp8_current, E4M3 for the others.",
    )
    disable_2d_quantization: bool = key(True, "nvfp4: one scale per 16 values of a weight, not per 16 x 16.")
    disable_rht: bool = key(True, "nvfp4: no random Hadamard transform.")
    disable_stochastic_rounding: bool = key(True, "nvfp4: round gradients to the nearest value.")
