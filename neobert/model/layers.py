"""Rotary positions (arXiv:2104.09864), norms, feed-forwards and the block. Copied into checkpoints.

Shapes: ... is [T] packed or [B, S] padded, D hidden size, N heads, H channels of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import Attend
from .backends import load_liger
from .configuration_neobert import NeoBERTConfig


def compute_rotation(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Return the RoPE cosines and sines of these positions [...], fp32 [..., 1, H/2, 2].

    Computed in every forward: a buffer would limit the positions, and could stay uninitialized in a model
    that was built on the meta device. Positions are exact in fp32 up to 2**24.
    """
    # always fp32: in bf16 positions above 256 are no longer distinct.
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.to(torch.float32)[..., None, None] * theta**-exponents
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate the channel pairs (2k, 2k+1) of x [..., N, H] in fp32 and cast back."""
    # Interleaved pairs, as the published weights have them; halves (k, k + H/2) would need a permuted qkv.
    pairs = x.to(torch.float32).unflatten(-1, (-1, 2))
    needs_real = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
    turned = _rotate_real(pairs, rotation) if needs_real else _rotate_complex(pairs, rotation)
    return turned.flatten(-2).to(x.dtype)


def _rotate_complex(pairs: Tensor, rotation: Tensor) -> Tensor:
    """Rotate by complex multiplication: 1 pass over memory, not 7 (eager H200 step: 169 ms, not 219)."""
    return torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(rotation))


def _rotate_real(pairs: Tensor, rotation: Tensor) -> Tensor:
    """Rotate in real arithmetic: compilers fuse it, and neither they nor ONNX support complex numbers."""
    (even, odd), (cos, sin) = pairs.unbind(-1), rotation.unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)


class RMSNorm(nn.Module):
    """Scale by the reciprocal root mean square (arXiv:1910.07467), computed in fp32 and cast back."""

    def __init__(self, width: int, eps: float, kernel: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.liger = load_liger().rms_norm if kernel == "liger" else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [..., D]."""
        if self.liger is not None:
            # "gemma" is liger's name for computing in fp32 and casting back.
            return self.liger.apply(x, self.weight, self.eps, 0.0, "gemma", False)
        # The mean of squares of a wide bf16 row has too few bits left to divide by.
        wide, weight = x.to(torch.float32), self.weight.to(torch.float32)
        if torch.onnx.is_in_onnx_export():  # the TorchScript exporter (dynamo=False) knows no rms_norm
            normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * weight
        else:
            normed = F.rms_norm(wide, weight.shape, weight, self.eps)
        return normed.to(x.dtype)


class SwiGLU(nn.Module):
    """Gated feed-forward (arXiv:2002.05202): `w3(silu(gate) * up)`; w12 holds gate's rows, then up's."""

    def __init__(self, hidden_size: int, width: int, kernel: str) -> None:
        super().__init__()
        # Gate and up in one product: the input is read once, and one wide product keeps more of the device
        # busy.
        self.w12 = nn.Linear(hidden_size, 2 * width, bias=False)
        self.w3 = residual_output(width, hidden_size)
        self.liger = load_liger().silu_mul if kernel == "liger" else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward to x [..., D]."""
        gate, up = self.w12(x).chunk(2, dim=-1)
        if self.liger is not None:
            return self.w3(self.liger.apply(gate, up))
        return self.w3(F.silu(gate) * up)


class EncoderBlock(GradientCheckpointingLayer):
    """One pre-norm block: attention, then feed-forward, each added to the residual stream."""

    attention_norm: RMSNorm | nn.LayerNorm
    ffn_norm: RMSNorm | nn.LayerNorm

    def __init__(self, config: NeoBERTConfig, number: int = 0) -> None:
        super().__init__()
        # What functions of transformers' attention registry read.
        self.config, self.layer_idx, self.is_causal = config, number, False
        self.num_heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.wo = residual_output(config.hidden_size, config.hidden_size)
        self.ffn = build_ffn(config)
        self.attention_norm = build_norm(config)
        self.ffn_norm = build_norm(config)
        # Without dropout no random numbers are drawn, and a graph has no node for it.
        self.dropout = nn.Dropout(config.hidden_dropout_prob) if config.hidden_dropout_prob else nn.Identity()

    def forward(self, x: Tensor, rotation: Tensor | None, attend: Attend) -> Tensor:
        """Apply the block to x [..., D]; `rotation` is None with learned positions."""
        x = x + self.dropout(self._attention(self.attention_norm(x), rotation, attend))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))

    def _attention(self, x: Tensor, rotation: Tensor | None, attend: Attend) -> Tensor:
        # The rows of qkv are grouped by head: Q, K and V of head 0, then of head 1, ...
        q, k, v = self.qkv(x).unflatten(-1, (self.num_heads, 3, -1)).unbind(-2)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return self.wo(attend(q, k, v).flatten(-2))


def build_norm(config: NeoBERTConfig) -> RMSNorm | nn.LayerNorm:
    """Build RMSNorm, or LayerNorm (with bias) if `config.rms_norm` is False; parameter names are the same."""
    if config.rms_norm:
        return RMSNorm(config.hidden_size, config.norm_eps, config.kernel_backend)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)


def build_ffn(config: NeoBERTConfig) -> nn.Module:
    """Build the feed-forward layer that `config.hidden_act` selects: SwiGLU or GELU."""
    width = config.ffn_width
    if config.hidden_act == "swiglu":
        return SwiGLU(config.hidden_size, width, config.kernel_backend)
    up = nn.Linear(config.hidden_size, width, bias=False)
    return nn.Sequential(up, nn.GELU(), residual_output(width, config.hidden_size))


def residual_output(in_features: int, out_features: int) -> nn.Linear:
    """Build a linear layer whose output is added to the residual stream, marked for `init: scaled`.

    A mark instead of a subclass, because quantization in torch selects layers by their exact class.
    """
    layer = nn.Linear(in_features, out_features, bias=False)
    layer.is_residual_output = True  # type: ignore[assignment]  # a module takes any attribute
    return layer
