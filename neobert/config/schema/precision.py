"""Config section of low-precision matrix products by torchao."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from neobert.schema_fields import STRICT, NonEmpty, key

TorchaoRecipeName = Literal[
    "float8_tensorwise",
    "float8_rowwise",
    "float8_rowwise_with_gw_hp",
    "mxfp8_rceil",
    "mxfp8_rceil_wgrad_with_hp",
    "mxfp8_emulated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchaoConfig:
    """Matrix products of the blocks' linear layers below bf16, by torchao; weights stay fp32."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    enable: bool = key(
        False, "Convert the linear layers of the blocks. The blocks then run as torch modules."
    )
    recipe: TorchaoRecipeName = key(
        "float8_rowwise",
        "torchao's recipe. float8_tensorwise: one scale per tensor. float8_rowwise: one per row; "
        "float8_rowwise_with_gw_hp: the same, with gradients of weights in bf16. mxfp8_rceil: one per 32 "
        "values (Blackwell); mxfp8_rceil_wgrad_with_hp: with gradients of weights in bf16. mxfp8_emulated: "
        "the rounding of mxfp8 without its speed, on any device.",
    )
    filter_fqns: tuple[NonEmpty, ...] = key(
        (), "Linear layers whose name in the block contains one of these texts stay in bf16."
    )
    skip_first_last_linear: bool = key(
        True, "Leave the first linear layer of the first block, and the last one of the last block, in bf16."
    )
