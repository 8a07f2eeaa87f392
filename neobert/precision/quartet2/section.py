"""Keys of low precision by Quartet-II."""

from dataclasses import dataclass
from typing import Literal

from neobert.precision.section import ConversionConfig
from neobert.schema_fields import key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Quartet2Config(ConversionConfig):
    """Matrix products of the blocks' linear layers in nvfp4, by Quartet-II; weights stay fp32."""

    recipe: Literal["quartet_ii"] = key("quartet_ii", "Quartet-II's recipe: nvfp4 with unbiased gradients.")
    four_over_six: bool = key(
        True, "Take the better of two scales for each 16 values of weights and activations."
    )
