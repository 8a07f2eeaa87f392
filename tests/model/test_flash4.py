"""The operator around FlashAttention 4, with plain attention in the package's place."""

import sys
import types
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from neobert.model.flash4 import INTERFACE, flash4_varlen

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler
LENGTHS = (5, 1, 9)
BOUNDS = (0, 5, 6, 15)


def attend(q, k, v):
    parts = [[x[a:b].transpose(0, 1)[None] for x in (q, k, v)] for a, b in pairwise(BOUNDS)]
    return torch.cat([F.scaled_dot_product_attention(*part)[0].transpose(0, 1) for part in parts])


@pytest.fixture(autouse=True)
def _plain_attention(monkeypatch):
    def forward(q, k, v, *, out, lse, **segments):
        assert segments["max_seqlen_q"] == segments["max_seqlen_k"] == max(LENGTHS)
        out.copy_(attend(q, k, v))
        lse.zero_()

    def backward(q, k, v, out, grad, lse, *, dq, dk, dv, **_):
        scale = q.shape[-1] ** -0.5
        for a, b in pairwise(BOUNDS):
            x, y, z, g = (each[a:b].transpose(0, 1) for each in (q, k, v, grad))
            weights = (x @ y.mT * scale).softmax(-1)
            inner = g @ z.mT
            scores = weights * (inner - (inner * weights).sum(-1, keepdim=True)) * scale
            for target, value in ((dq, scores @ y), (dk, scores.mT @ x), (dv, weights.mT @ g)):
                target[a:b] = value.transpose(0, 1)

    interface = types.ModuleType(INTERFACE)
    interface._flash_attn_fwd, interface._flash_attn_bwd = forward, backward
    monkeypatch.setitem(sys.modules, INTERFACE, interface)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make_inputs():
    """q, k, v as a block makes them: v is a view of the fused product."""
    torch.manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 2, 3, 8, requires_grad=True)
    return qkv, torch.tensor(BOUNDS, dtype=torch.int32)


def run(qkv, bounds):
    q, k, v = qkv.unbind(2)
    return flash4_varlen(q * 1.0, k * 1.0, v, bounds, bounds, max(LENGTHS), max(LENGTHS))


def gradient(context, qkv):
    weighting = torch.linspace(-1, 1, context.numel()).view_as(context)
    return torch.autograd.grad((context * weighting).sum(), qkv)[0]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_output_and_gradients_come_through(is_compiled):
    qkv, bounds = make_inputs()
    found = (torch.compile(run, backend="aot_eager", fullgraph=True) if is_compiled else run)(qkv, bounds)
    wanted = attend(*qkv.unbind(2))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient(found, qkv), gradient(wanted, qkv))


def test_the_operator_keeps_torchs_rules():
    qkv, bounds = make_inputs()
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv.unbind(2))
    torch.library.opcheck(torch.ops.neobert.flash4_varlen, (q, k, v, bounds, max(LENGTHS), -1, 0, None))


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({}, (False, None, None, None)),
        ({"causal": True, "window_size": (-1, 0)}, (True, None, 0, None)),
        ({"causal": True, "window_size": (5, 0), "softmax_scale": 0.5}, (True, 5, 0, 0.5)),
        ({"causal": False, "window_size": (5, 5)}, (False, 5, 5, None)),
    ],
)
def test_a_side_without_a_limit_is_given_as_none(options, given, monkeypatch):
    """-1 would be a window of -1 tokens, and with a right side the causal program would not be chosen."""
    seen = {}

    def forward(q, k, v, *, out, lse, **found):
        seen["forward"] = found
        out.zero_(), lse.zero_()

    def backward(q, k, v, *rest, dq, dk, dv, **found):
        seen["backward"] = found
        dq.zero_(), dk.zero_(), dv.zero_()

    monkeypatch.setattr(sys.modules[INTERFACE], "_flash_attn_fwd", forward)
    monkeypatch.setattr(sys.modules[INTERFACE], "_flash_attn_bwd", backward)
    qkv, bounds = make_inputs()
    q, k, v = qkv.unbind(2)
    k, v = k[:, :1], v[:, :1]
    context = flash4_varlen(q, k, v, bounds, bounds, max(LENGTHS), max(LENGTHS), **options)
    context.sum().backward()
    names = ("causal", "window_size_left", "window_size_right", "softmax_scale")
    for found in seen.values():
        assert tuple(found[name] for name in names) == given
    assert len(seen) == 2
