"""Linear layer in mxfp8, through torchao's matrix product. Imports torch and torchao.

torchao's own interfaces do not fit a trainer with autocast: its `MXFP8Linear` passes on fp32 parameters,
which its backward pass cannot multiply with bf16 gradients; `quantize_` wraps parameters in a class that
safetensors cannot write, and whose linear drops the bias. The product rejects views.
"""

from __future__ import annotations

from torch import Tensor, nn
from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
from torchao.prototype.mx_formats import ScaleCalculationMode
from torchao.quantization.quantize_.common import KernelPreference

from neobert.precision.like_linear import LinearReplacement


class MXFP8Linear(LinearReplacement):
    """A linear layer whose products are in mxfp8, with one scale per 32 values.

    Attributes:
        is_emulated: round to mxfp8, and multiply in bf16.
        has_bf16_weight_gradient: the gradient of the weight is a product in bf16.
    """

    is_emulated = False
    has_bf16_weight_gradient = False

    @classmethod
    def from_linear(
        cls, layer: nn.Linear, *, is_emulated: bool, has_bf16_weight_gradient: bool
    ) -> MXFP8Linear:
        """Return a layer that holds the parameters of `layer`; the options are attributes of the class."""
        made = cls.with_parameters_of(layer)
        made.is_emulated, made.has_bf16_weight_gradient = is_emulated, has_bf16_weight_gradient
        return made

    def product(self, values: Tensor, weight: Tensor) -> Tensor:
        """Return the product in mxfp8, or in bf16 after rounding to mxfp8 if `is_emulated`."""
        product: Tensor = _to_mxfp8_then_scaled_mm(
            values,
            weight,
            KernelPreference.EMULATED if self.is_emulated else KernelPreference.AUTO,
            ScaleCalculationMode.RCEIL,
            self.has_bf16_weight_gradient,
        )
        return product
