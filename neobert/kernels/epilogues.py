"""Epilogues of the block's matrix products, in quack's epilogue language: applied before results are stored.

T tokens, D hidden size, I intermediate size. Each function is applied to one accumulator (or one pair of
adjacent columns) in float32. The module needs quack-kernels and a Hopper or newer GPU;
`neobert.kernels.fused_block` imports it on first use.
"""

from quack.activation import dswiglu, swiglu
from quack.epilogue.frontend import gemm_epilogue
from quack.epilogue.math import pack, unpack
from quack.epilogue.ops import ColVecLoad, ColVecReduce
from quack.epilogue.rotary import rotary_cos_sin_load


@gemm_epilogue(ops={"rstd": ColVecLoad("rstd"), "rotary": rotary_cos_sin_load("rotary")}, mode="acc_pair")
def norm_rotate(acc, rstd, rotary):
    """Scale rows by the norm's rstd, then rotate adjacent pairs of columns by the rotary table.

    For values, the table has cos 1 and sin 0, which leaves them unchanged.
    """
    even, odd = unpack(acc * rstd)
    cos, sin = unpack(rotary)
    return {"D": pack(even * cos - odd * sin, even * sin + odd * cos)}


@gemm_epilogue(reduces={"squares": ColVecReduce("squares", scaled=True)})
def residual_squares(acc, c):
    """Add the residual stream; store partial row sums of squares, used to compute the next norm's rstd."""
    y = acc + c
    return {"D": y, "squares": (y, y)}


@gemm_epilogue(outputs=("activated",), ops={"rstd": ColVecLoad("rstd")}, mode="acc_pair")
def norm_swiglu(acc, rstd):
    """Scale rows by rstd; store gate and up (adjacent columns), and silu(gate) * up."""
    gate, up = unpack(acc * rstd)
    return {"D": pack(gate, up), "activated": swiglu(gate, up)}


@gemm_epilogue(
    ops={"rstd": ColVecLoad("rstd")}, reduces={"dots": ColVecReduce("dots")}, mode="packed_cd_b16x2"
)
def swiglu_gradient(acc, c, rstd):
    """Store rstd * gradient of (gate, up), and row sums for the norm; acc is the activation's gradient."""
    gate, up = unpack(c)
    grad_gate, grad_up, _ = dswiglu(gate, up, acc)
    return {"D": pack(grad_gate * rstd, grad_up * rstd), "dots": grad_gate * gate + grad_up * up}


@gemm_epilogue(ops={"correction": ColVecLoad("correction")})
def norm_gradient(acc, c, x, correction):
    """Store the gradient of the residual stream: the paths through the norm (acc, x * correction) plus c."""
    return {"D": acc + c + x * correction}
