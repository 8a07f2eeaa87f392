"""Every kernel against float64, its error measured in units of the plain bfloat16 formula's own error.

Without a GPU the Triton programs run under triton's interpreter where TRITON_INTERPRET=1 and triton is
installed, in float32. That of triton 3.6 needs numpy below 2.4.
"""

import importlib.util
import os
from itertools import pairwise

import pytest
import torch

from neobert.kernels import reference, vocabulary

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="needs triton"),
    # Of what quack-kernels and FlashAttention 4 are built on.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
HEADS, SIZE, THETA, EPS = 3, 64, 10000.0, 1e-5
SEGMENTS = (1, 130, 128, 40, 0, 200, 0)
TOTAL = 512
SLACK = 1.5
"""A kernel may err this many times as much as the plain formula in the same dtype."""


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def draw(*shape, scale=1.0):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float64) * scale


def packed():
    cu = torch.tensor([0, *torch.tensor(SEGMENTS).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)
    bounds = [*cu.tolist(), TOTAL]
    positions = torch.cat([torch.arange(b - a) for a, b in pairwise(bounds)]).to(DEVICE)
    return cu, positions


def relative_error(value, truth):
    return ((value.double() - truth.double()).norm() / truth.double().norm()).item()


def grads_of(function, inputs, grad):
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    out.backward(grad.to(out.dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def assert_as_good(kernel, plain, inputs, grad):
    """Compare value and gradients of kernel and plain formula, in DTYPE, with the formula in float64."""
    truth = grads_of(plain, inputs, grad)
    low = [each.to(DTYPE) for each in inputs]
    ours, theirs = grads_of(kernel, low, grad), grads_of(plain, low, grad)
    for index, (a, b, t) in enumerate(zip(ours, theirs, truth, strict=True)):
        bound = SLACK * relative_error(b, t) + 1e-6
        assert relative_error(a, t) <= bound, (index, relative_error(a, t), bound)


def test_rotary_attention(by_block):
    from neobert.kernels.attention import BLOCK, attention_tiles, rotary_attention, rotary_table

    cu, positions = packed()
    rotary, tiles = rotary_table(positions, SIZE, THETA), attention_tiles(cu, TOTAL, BLOCK)
    assert_as_good(
        lambda x, weight: rotary_attention(x, weight, rotary, tiles, HEADS),
        lambda x, weight: reference.attention(x @ weight.t(), positions, cu, HEADS, THETA),
        [draw(TOTAL, 96), draw(3 * HEADS * SIZE, 96, scale=0.1)], draw(TOTAL, HEADS * SIZE),
    )  # fmt: skip


def test_attention_stays_inside_its_segment():
    from neobert.kernels.attention import BLOCK, attention_tiles, rotary_attention, rotary_table

    cu, positions = packed()
    rotary, tiles = rotary_table(positions, SIZE, THETA), attention_tiles(cu, TOTAL, BLOCK)
    x, weight = draw(TOTAL, 96).to(DTYPE), draw(3 * HEADS * SIZE, 96, scale=0.1).to(DTYPE)
    changed = x.clone()
    changed[1:131] += 1
    before, after = (rotary_attention(t, weight, rotary, tiles, HEADS) for t in (x, changed))
    same = (before == after).all(1)
    assert same[:1].all()
    assert same[131:].all()
    assert not same[1:131].any()


def test_attention_gradient_carries_a_folded_norm():
    from neobert.kernels import attention
    from neobert.kernels.attention import attention_tiles, rotary_table

    cu, positions = packed()
    rotary, tiles = rotary_table(positions, SIZE, THETA), attention_tiles(cu, TOTAL, attention.BLOCK)
    qkv = attention.rotate(draw(TOTAL, 3 * HEADS * SIZE).to(DTYPE), rotary, HEADS)
    grad = draw(TOTAL, HEADS * SIZE).to(DTYPE)
    out, lse = attention.run_forward(qkv, tiles, HEADS)
    bare, nothing = attention.run_backward(grad, qkv, out, lse, rotary, tiles)
    rstd = torch.rand(TOTAL, device=DEVICE) + 0.5
    scaled, rowdot = attention.run_backward(grad, qkv, out, lse, rotary, tiles, rstd)
    turned = attention.rotate(bare.clone(), rotary, HEADS)
    expected = (turned.double() * qkv.double()).view(TOTAL, HEADS, -1).sum(-1).t()
    assert nothing is None
    assert relative_error(scaled, bare.double() * rstd.double()[:, None]) < 5e-3
    assert relative_error(rowdot, expected) < 2e-2


@pytest.mark.parametrize("rows", [1, 77, 300])
def test_add_rms_norm(rows):
    from neobert.kernels.pointwise import add_rms_norm

    def plain(x, branch, weight):
        y = x + branch
        return torch.cat([y, reference.rms_norm(y, weight, EPS)], 1)

    assert_as_good(
        lambda x, branch, weight: torch.cat(add_rms_norm(x, branch, weight, EPS), 1), plain,
        [draw(rows, 192), draw(rows, 192), 1 + draw(192, scale=0.1)], draw(rows, 384),
    )  # fmt: skip


def test_rms_norm_without_branch():
    from neobert.kernels.pointwise import rms_norm

    assert_as_good(
        lambda x, w: rms_norm(x, w, EPS), lambda x, w: reference.rms_norm(x, w, EPS),
        [draw(33, 96), 1 + draw(96, scale=0.1)], draw(33, 96),
    )  # fmt: skip


def assert_unbiased(gradient, truth):
    """Compare the mean of equal rows, in units of the spacing of bfloat16: to nearest, it errs up to 0.5."""
    spacing = 2.0 ** (truth.abs().log2().floor() - 7)
    error = (gradient.double().mean(0) - truth.double()) / spacing
    assert error.abs().max() < 0.1


def test_equal_gradients_of_the_residual_stream_do_not_round_alike():
    from neobert.kernels.pointwise import add_rms_norm

    # Tokens without a loss: equal errors would add up over them.
    row, weight, grad = (draw(1, 96).to(torch.bfloat16) for _ in range(3))
    x, branch = (row.expand(2048, -1).contiguous().requires_grad_() for _ in range(2))
    out, normed = add_rms_norm(x, branch, weight[0], EPS)
    torch.autograd.backward([out, normed], [grad.expand_as(out), grad.expand_as(out)])
    wide = row.double().requires_grad_()
    both = 2 * wide
    (both + reference.rms_norm(both, weight[0].double(), EPS)).backward(grad.double())
    assert_unbiased(x.grad, wide.grad[0] / 2)


def test_nan_in_a_gradient_of_the_residual_stream_is_kept():
    from neobert.kernels.pointwise import rms_norm

    x = draw(3, 96).to(torch.bfloat16).requires_grad_()
    grad = torch.ones_like(x)
    grad[1, 5] = float("nan")
    rms_norm(x, torch.ones(96, device=DEVICE), EPS).backward(grad)
    assert x.grad.isnan().all(1).tolist() == [False, True, False]


@pytest.fixture(params=[True, False], ids=["blocks", "pointers"])
def by_block(request, monkeypatch):
    """Run the programs of GPUs that copy blocks by themselves, and those of GPUs that do not."""
    from neobert.kernels import attention, feed_forward

    for module in (attention, feed_forward):
        if request.param and not module.supports_block_copies(torch.empty(0, device=DEVICE)):
            pytest.skip("needs a Hopper card")
        monkeypatch.setattr(module, "supports_block_copies", lambda x: request.param)
        # A program takes several tiles, as of a microbatch: these tests have fewer than a GPU runs at once.
        monkeypatch.setattr(module, "count_multiprocessors", lambda x: 1)


@pytest.mark.parametrize(("rows", "width"), [(1, 128), (70, 128), (300, 200)])
def test_feed_forward(by_block, rows, width):
    from neobert.kernels.feed_forward import feed_forward

    assert_as_good(
        feed_forward, lambda x, w12, w3: reference.swiglu(x @ w12.t()) @ w3.t(),
        [draw(rows, 96), draw(2 * width, 96, scale=0.1), draw(64, width, scale=0.1)], draw(rows, 64),
    )  # fmt: skip


def test_the_gradient_of_a_weight_is_not_rounded():
    """Only the inputs are: a gradient in bfloat16 would differ by 2e-3."""
    from neobert.kernels.linear import linear

    x, grad, weight = draw(300, 128).to(DTYPE), draw(300, 64).to(DTYPE), draw(64, 128).float()
    linear(x, weight.requires_grad_()).backward(grad)
    assert weight.grad.dtype == torch.float32
    assert relative_error(weight.grad, grad.double().t() @ x.double()) < 1e-5


@pytest.mark.parametrize(
    ("rows_per_chunk", "block", "z_loss", "softcap"),
    [(16, 1024, 0.0, None), (100, 256, 0.0, None), (16, 256, 0.05, None), (16, 256, 0.05, 5.0)],
)
@pytest.mark.parametrize("vocab", [1001, 1024])
def test_linear_cross_entropy(monkeypatch, rows_per_chunk, block, z_loss, softcap, vocab):
    monkeypatch.setattr(vocabulary, "BLOCK", block)
    labels = torch.randint(0, vocab, (41,), device=DEVICE)
    labels[::5] = -100

    def plain(hidden, weight, bias):
        logits = (hidden @ weight.t() + bias).to(torch.promote_types(hidden.dtype, torch.float32))
        logits = logits if softcap is None else softcap * (logits / softcap).tanh()
        squares = logits[labels >= 0].logsumexp(1).square()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum") + z_loss * squares.sum()

    assert_as_good(
        lambda *inputs: vocabulary.linear_cross_entropy(
            *inputs, labels, rows_per_chunk, "triton", z_loss, softcap
        ),
        plain,
        [draw(41, 64), draw(vocab, 64, scale=0.2), draw(vocab, scale=0.1)],
        torch.tensor(0.5, device=DEVICE),
    )


@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_logits_become_their_gradient_in_place(monkeypatch, scale):
    monkeypatch.setattr(vocabulary, "BLOCK", 256)
    logits, labels = draw(9, 1001, scale=scale).to(DTYPE), torch.arange(9, device=DEVICE) * 100
    wide = logits.double().requires_grad_()
    truth = torch.nn.functional.cross_entropy(wide, labels, reduction="none")
    truth.sum().backward()
    losses = torch.empty(9, device=DEVICE)
    vocabulary.PROGRAMS["triton"](logits, None, labels, losses, 0.0, None)
    assert relative_error(losses, truth.detach()) < 1e-6
    torch.testing.assert_close(logits, wide.grad.to(DTYPE), rtol=1e-2, atol=1e-6)


def test_loss_of_no_targets_is_zero():
    hidden, labels = draw(8, 64).to(DTYPE).requires_grad_(), torch.full((8,), -100, device=DEVICE)
    loss = vocabulary.linear_cross_entropy(hidden, draw(100, 64).to(DTYPE), None, labels, program="triton")
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any()


@pytest.mark.parametrize("label", [1024, 5000])
def test_a_label_outside_the_vocabulary_is_no_finite_loss(label):
    labels = torch.tensor([3, label], device=DEVICE)
    loss = vocabulary.linear_cross_entropy(
        draw(2, 64).to(DTYPE), draw(1024, 64).to(DTYPE), None, labels, program="triton"
    )
    assert not loss.isfinite()


@pytest.mark.parametrize("interleave", [False, True])
def test_folding_and_back(interleave):
    from neobert.kernels.pointwise import sum_partials
    from neobert.kernels.products import NUM_PARTIALS, fold, unfold

    weight, gain = draw(256, 96).float(), (1 + draw(96, scale=0.1)).float()
    folded = fold(weight, gain, torch.float32, interleave=interleave)
    wide = weight.double() * gain.double()
    expected = torch.stack(wide.chunk(2), 1).flatten(0, 1) if interleave else wide
    assert relative_error(folded, expected) < 1e-6
    grad = draw(256, 96).float()
    partials = torch.full((2, NUM_PARTIALS, 96), float("nan"), device=DEVICE)
    grad_weight = unfold(grad, weight, gain, partials[0], interleave=interleave)
    partials[1] = 1
    grad_gain, ones = sum_partials(partials)
    flat = torch.cat([grad[::2], grad[1::2]]) if interleave else grad
    assert relative_error(grad_weight, flat.double() * gain.double()) < 1e-6
    assert relative_error(grad_gain, (flat.double() * weight.double()).sum(0)) < 1e-5
    assert (ones == NUM_PARTIALS).all()


def has_quack():
    return DEVICE == "cuda" and importlib.util.find_spec("quack") is not None


@pytest.mark.skipif("not has_quack()", reason="needs quack-kernels and a Hopper card")
@pytest.mark.parametrize("flash4", [False, True])
def test_fused_block(flash4):
    from neobert.kernels import attention
    from neobert.kernels.attention import attention_tiles, rotary_table
    from neobert.kernels.fused_block import BlockWeights, encoder_block
    from neobert.kernels.products import row_rstd
    from tests.gpu.obstacles import flash4_obstacle

    if flash4 and flash4_obstacle():
        pytest.skip(flash4_obstacle())
    size, inner, heads = 768, 2048, 12
    cu, positions = packed()
    rotary = rotary_table(positions, 64, THETA)
    cu_all = torch.cat([cu, cu.new_tensor([TOTAL])])
    segments = cu_all if flash4 else attention_tiles(cu, TOTAL, attention.BLOCK)
    shapes = ((size,), (3 * size, size), (size, size), (size,), (2 * inner, size), (size, inner))
    weights = [1 + draw(*s, scale=0.1) if len(s) == 1 else draw(*s, scale=0.02) for s in shapes]

    def ours(x, *w):
        x = x.to(DTYPE)
        return encoder_block(
            x, row_rstd(x.detach(), EPS), BlockWeights(*w), rotary, segments,
            num_heads=heads, eps=EPS, max_seqlen=200 if flash4 else 0,
        )[0]  # fmt: skip

    def plain(x, *w):
        return reference.block(x, BlockWeights(*w), positions, cu, heads, THETA, EPS)

    inputs, grad = [draw(TOTAL, size), *weights], draw(TOTAL, size)
    truth = grads_of(plain, inputs, grad)
    low = grads_of(plain, [t.to(DTYPE) for t in inputs], grad)
    mixed = grads_of(ours, [inputs[0].to(DTYPE), *(t.float() for t in weights)], grad)
    for index, (a, b, t) in enumerate(zip(mixed, low, truth, strict=True)):
        assert relative_error(a, t) <= SLACK * relative_error(b, t), index
