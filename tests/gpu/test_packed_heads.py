"""This project's attention for other modules, against attention within segments in float64."""

from itertools import pairwise

import pytest
import torch

from neobert.model.attention import packed_attention
from neobert.model.backends import BackendError, choose_backend, current_environment

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler
LENGTHS = (1, 2, 14, 0, 63, 64, 0, 65, 128, 200, 0)
TAIL = 37
SIZE = 64
SLACK = 1.5
"""The kernel may err this many times as much as the plain formula in bfloat16."""


def draw(lengths, heads, tail=TAIL, seed=0):
    """qkv [T, N, 3, H] in bf16, the gradient of the output [T, N, H], and bounds with spare slots."""
    generator = torch.Generator("cuda").manual_seed(seed)
    total = sum(lengths) + tail
    qkv = torch.randn(total, heads, 3, SIZE, device="cuda", generator=generator)
    grad = torch.randn(total, heads, SIZE, device="cuda", generator=generator)
    bounds = torch.tensor([0, *lengths, 0, 0], device="cuda").cumsum(0).to(torch.int32)
    return qkv.bfloat16(), grad.bfloat16(), bounds


def attend(qkv, bounds):
    """Attention as a block calls it: v is a view of the fused product, q and k are new tensors."""
    q, k, v = qkv.unbind(2)
    attention = packed_attention("triton_packed", bounds, max(LENGTHS), len(qkv))
    return attention(q * 1.0, k * 1.0, v)


def plain(qkv, bounds):
    """Attention by the formula; rows after the last bound are one more segment."""
    parts = []
    for a, b in pairwise([*bounds.tolist(), len(qkv)]):
        q, k, v = (x.transpose(0, 1) for x in qkv[a:b].unbind(2))
        parts.append(((q @ k.mT * SIZE**-0.5).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(parts)


def with_gradient(function, qkv, grad, *rest):
    leaf = qkv.detach().clone().requires_grad_()
    out = function(leaf, *rest)
    out.backward(grad.to(out.dtype))
    return {"out": out.detach(), **dict(zip("qkv", leaf.grad.unbind(2), strict=True))}


def relative_errors(found, truth):
    return {name: float((found[name].double() - x).norm() / x.norm()) for name, x in truth.items()}


@pytest.mark.parametrize("heads", [1, 8, 12])
@pytest.mark.parametrize("tail", [0, TAIL])
def test_values_and_gradients_against_float64(heads, tail):
    qkv, grad, bounds = draw(LENGTHS, heads, tail)
    truth = with_gradient(plain, qkv.double(), grad, bounds)
    by_formula = relative_errors(with_gradient(plain, qkv, grad, bounds), truth)
    errors = relative_errors(with_gradient(attend, qkv, grad, bounds), truth)
    assert all(error < SLACK * by_formula[name] for name, error in errors.items()), (errors, by_formula)


@pytest.mark.parametrize("length", [1, 2, 14, 63, 64, 65, 128, 200])
def test_every_segment_length_against_float64(length):
    qkv, grad, bounds = draw((length,) * 20, 8, tail=0)
    truth = with_gradient(plain, qkv.double(), grad, bounds)
    found = with_gradient(attend, qkv, grad, bounds)
    for name, x in truth.items():
        error = (found[name].double() - x).abs().amax(dim=(1, 2))
        assert error.max() < 0.03 * x.abs().max().clamp(min=1), (name, error)


def test_no_token_of_another_segment_has_an_effect():
    qkv, grad, bounds = draw(LENGTHS, 8)
    before = with_gradient(attend, qkv, grad, bounds)
    for a, b in pairwise([*bounds.tolist(), len(qkv)]):
        if a == b:
            continue
        other, other_grad, _ = draw(LENGTHS, 8, seed=1)
        other[a:b], other_grad[a:b] = qkv[a:b], grad[a:b]
        after = with_gradient(attend, other, other_grad, bounds)
        for name, x in before.items():
            assert torch.equal(x[a:b], after[name][a:b]), (name, a, b)


def test_a_repeat_has_the_same_bits():
    qkv, grad, bounds = draw(LENGTHS * 20, 12)
    first, second = (with_gradient(attend, qkv, grad, bounds) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_gradients_the_values_are_the_same():
    qkv, grad, bounds = draw(LENGTHS, 8)
    trained = with_gradient(attend, qkv, grad, bounds)["out"]
    with torch.no_grad():
        assert torch.equal(attend(qkv, bounds), trained)


def test_one_graph_serves_every_packing_and_equals_eager():
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    for tail, lengths in enumerate([LENGTHS, (14,) * 11, (128, 3, 0, 77, 200, 9, 1, 1, 64, 65, 2)]):
        qkv, grad, bounds = draw(lengths, 8, tail)
        eager = with_gradient(attend, qkv, grad, bounds)
        for name, x in with_gradient(compiled, qkv, grad, bounds).items():
            assert torch.equal(x, eager[name]), name
    assert counters["stats"]["unique_graphs"] - before == 1


@pytest.mark.parametrize(
    ("dtype", "size", "message"),
    [
        (torch.float32, SIZE, "needs bfloat16, but the run computes in float32"),
        (torch.float16, SIZE, "needs bfloat16, but the run computes in float16"),
        (torch.bfloat16, 32, "needs a head size of 64, but the model's is 32"),
    ],
)
def test_tensors_that_it_does_not_support_are_refused(dtype, size, message):
    q, k, v = torch.zeros(3, 5, 2, size, dtype=dtype, device="cuda")
    bounds = torch.tensor([0, 5], dtype=torch.int32, device="cuda")
    with pytest.raises(BackendError, match=message):
        packed_attention("triton_packed", bounds, 5, 5)(q, k, v)


def test_auto_takes_it_for_short_rows():
    short, long = (current_environment("cuda", torch.bfloat16, SIZE, row_length=n) for n in (32, 100_000))
    assert choose_backend("auto", short).name == "triton_packed"
    assert choose_backend("auto", long).name != "triton_packed"
