"""Recipes of Transformer Engine. Imports no torch.

The hardware requirements are from Transformer Engine 2.20, whose own check has none for nvfp4.
"""

from __future__ import annotations

from neobert.precision.library import ADA, BLACKWELL, HOPPER, Library, LowPrecisionRecipe
from neobert.precision.transformer_engine.section import TransformerEngineConfig

FORMAT = frozenset({"fp8_format"})
NVFP4 = frozenset({"disable_2d_quantization", "disable_rht", "disable_stochastic_rounding"})

TRANSFORMER_ENGINE = Library(
    name="transformer_engine",
    about="Low-precision matrix products by Transformer Engine.",
    section=TransformerEngineConfig,
    recipes={
        "fp8_current": LowPrecisionRecipe(ADA, 16, reads=FORMAT),
        "fp8_block": LowPrecisionRecipe(HOPPER, 16, reads=FORMAT, min_cuda=(12, 9)),
        "mxfp8": LowPrecisionRecipe(((10, 0), (12, 0)), 32, reads=FORMAT),
        "nvfp4": LowPrecisionRecipe(
            BLACKWELL, 64, reads=NVFP4, rate=8.0
        ),  # capability 12.0; 4 times on a B200
    },
    package="transformer-engine",
    install="pip install --no-build-isolation 'transformer-engine[pytorch]>=2.20'",
    oldest="2.20",
)
