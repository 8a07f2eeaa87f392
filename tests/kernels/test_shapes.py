"""What the operators tell a compiler, shapes and types of results and gradients: no device, no triton."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neobert.kernels import attention, flash4
from neobert.kernels.feed_forward import feed_forward
from neobert.kernels.fused_block import BlockWeights, encoder_block
from neobert.kernels.pointwise import add_rms_norm, next_power_of_two, rms_norm
from neobert.kernels.vocabulary import linear_cross_entropy

TOKENS, HEADS, HEAD_DIM, INNER, VOCAB = 96, 2, 64, 192, 300
HIDDEN = HEADS * HEAD_DIM
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _on_no_device():
    with FakeTensorMode():
        yield


def make(*shape, dtype=BF16):
    return torch.empty(*shape, dtype=dtype, requires_grad=dtype.is_floating_point)


def shapes_of(tensors):
    return [(tuple(each.shape), each.dtype) for each in tensors]


def check(result, shape, *inputs):
    """Hold the result to its shape and each gradient to its input's."""
    assert (tuple(result.shape), result.dtype) == shape
    gradients = torch.autograd.grad(result.sum(), inputs)
    assert shapes_of(gradients) == shapes_of(inputs)


def make_weights():
    shapes = ((HIDDEN,), (3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,), (2 * INNER, HIDDEN))
    return BlockWeights(*(make(*shape, dtype=FP32) for shape in (*shapes, (HIDDEN, INNER))))


def make_bounds():
    return torch.zeros(9, dtype=torch.int32)


def test_attention():
    x, weight, rotary = (
        make(TOKENS, 96),
        make(3 * HIDDEN, 96),
        make(TOKENS, 3 * HEAD_DIM, dtype=FP32).detach(),
    )
    tiles = torch.zeros(3, 10, dtype=torch.int32)
    attended = attention.rotary_attention(x, weight, rotary, tiles, HEADS)
    check(attended, ((TOKENS, HIDDEN), BF16), x, weight)
    attended = flash4.rotary_attention(x, weight, rotary, make_bounds(), TOKENS, HEADS)
    check(attended, ((TOKENS, HIDDEN), BF16), x, weight)


@pytest.mark.parametrize("max_seqlen", [0, TOKENS])
def test_block(max_seqlen):
    x, rstd, weights = make(TOKENS, HIDDEN), make(TOKENS, dtype=FP32).detach(), make_weights()
    rotary = make(TOKENS, 3 * HEAD_DIM, dtype=torch.float16).detach()
    segments = make_bounds() if max_seqlen else torch.zeros(3, 10, dtype=torch.int32)
    out, next_rstd = encoder_block(
        x, rstd, weights, rotary, segments, num_heads=HEADS, eps=1e-5, max_seqlen=max_seqlen
    )
    assert shapes_of([next_rstd]) == [((TOKENS,), FP32)]
    check(out, ((TOKENS, HIDDEN), BF16), x, *weights)


@pytest.mark.parametrize("has_bias", [True, False])
def test_loss(has_bias):
    hidden, weight = make(TOKENS, HIDDEN), make(VOCAB, HIDDEN, dtype=FP32)
    bias = make(VOCAB, dtype=FP32) if has_bias else None
    labels = torch.zeros(TOKENS, dtype=torch.int64)
    for z_loss in (0.0, 1e-4):
        loss = linear_cross_entropy(hidden, weight, bias, labels, z_loss=z_loss)
        check(loss, ((), FP32), hidden, weight, *([bias] if has_bias else []))


def test_norm_and_feed_forward():
    x, branch, gain = make(TOKENS, HIDDEN), make(TOKENS, HIDDEN), make(HIDDEN, dtype=FP32)
    check(rms_norm(x, gain, 1e-5), ((TOKENS, HIDDEN), BF16), x, gain)
    out, normed = add_rms_norm(x, branch, gain, 1e-5)
    check(out + normed, ((TOKENS, HIDDEN), BF16), x, branch, gain)
    w12, w3 = make(2 * INNER, HIDDEN, dtype=FP32), make(HIDDEN, INNER, dtype=FP32)
    check(feed_forward(x, w12, w3), ((TOKENS, HIDDEN), BF16), x, w12, w3)


@pytest.mark.parametrize(("size", "width"), [(1, 1), (2, 2), (3, 4), (768, 1024), (1024, 1024), (1025, 2048)])
def test_a_tile_holds_a_row(size, width):
    assert next_power_of_two(size) == width
