"""Recipes of torchao. Imports no torch.

The hardware requirements are from torchao 0.18 and `torch._scaled_mm`.
"""

from __future__ import annotations

from neobert.precision.library import ADA, DATA_CENTER_BLACKWELL, EVERY, HOPPER, Library, LowPrecisionRecipe
from neobert.precision.recipe import BF16
from neobert.precision.torchao.section import TorchaoConfig

GATHERS = "enable_fsdp_float8_all_gather"
SHARDED = frozenset({GATHERS, "precompute_float8_dynamic_scale_for_fsdp"})
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})

TORCHAO = Library(
    name="torchao",
    about="Low-precision matrix products by torchao.",
    section=TorchaoConfig,
    recipes={
        "float8_rowwise": LowPrecisionRecipe(HOPPER, 16, FLOAT8, was_run=True),
        "float8_tensorwise": LowPrecisionRecipe(ADA, 16, FLOAT8, reads=SHARDED, was_run=True),
        "float8_rowwise_with_gw_hp": LowPrecisionRecipe(HOPPER, 16, FLOAT8),
        "mxfp8_rceil": LowPrecisionRecipe(DATA_CENTER_BLACKWELL, 32, FLOAT8),
        "mxfp8_rceil_wgrad_with_hp": LowPrecisionRecipe(DATA_CENTER_BLACKWELL, 32, FLOAT8),
        "mxfp8_emulated": LowPrecisionRecipe(EVERY, 32, frozenset({BF16.dtype}), was_run=True),
        "nvfp4": LowPrecisionRecipe(DATA_CENTER_BLACKWELL, 128, rate=4.0),
    },
    package="torchao",
    install="pip install 'torchao>=0.18'",
    oldest="0.18",
    gathers_key=GATHERS,
)
