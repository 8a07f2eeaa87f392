"""Operators around this project's attention for other modules; plain attention replaces the programs."""

import sys
import types

import pytest
import torch

from neobert.kernel_table import ATTENTION, ATTENTION_CHOICES, Environment, Gpu, find_attention_kernels
from neobert.kernels import packed_heads
from neobert.kernels.packed_heads import triton_packed
from neobert.model import backends
from neobert.model.attention import packed_attention, segmented_sdpa
from neobert.model.backends import BackendError, choose_backend
from neobert.model.configuration_neobert import ATTENTION_BACKENDS

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler
HEADS, SIZE = 2, 64
SHORT = ATTENTION["triton_packed"].longest_segment
HOPPER = Environment("cuda", "bfloat16", 64, (Gpu("this GPU", (9, 0)),), (), SHORT)


def segments(tiles, total):
    """The bounds that a table of tiles covers."""
    first, begin, end = tiles
    used = first < end
    bounds = sorted({*zip(begin[used].tolist(), end[used].tolist(), strict=True)})
    assert bounds[0][0] == 0
    assert bounds[-1][1] == total
    return bounds


def plain(qkv, tiles, num_heads):
    q, k, v = qkv.view(len(qkv), num_heads, 3, -1).unbind(2)
    parts = [
        torch.nn.functional.scaled_dot_product_attention(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)))
        for a, b in segments(tiles, len(qkv))
    ]
    return torch.cat([part[0].transpose(0, 1) for part in parts]).flatten(1)


def run_forward(qkv, tiles, num_heads):
    return plain(qkv, tiles, num_heads), qkv.new_zeros(num_heads, len(qkv), dtype=torch.float32)


def run_backward(grad_out, qkv, out, lse, rotary, tiles):
    assert rotary is None
    assert grad_out.is_contiguous()
    shape = len(qkv), len(lse), 3, SIZE
    grads, scale = torch.empty(shape), SIZE**-0.5
    queries, keys, values = qkv.view(shape).unbind(2)
    for a, b in segments(tiles, len(qkv)):
        given = (queries, keys, values, grad_out.view(out.shape[0], len(lse), SIZE))
        q, k, v, grad = (x[a:b].transpose(0, 1) for x in given)
        weights = (q @ k.mT * scale).softmax(-1)
        inner = grad @ v.mT
        scores = weights * (inner - (inner * weights).sum(-1, keepdim=True)) * scale
        for number, value in enumerate((scores @ k, scores.mT @ q, weights.mT @ grad)):
            grads[a:b, :, number] = value.transpose(0, 1)
    return grads.flatten(1), None


@pytest.fixture
def _plain_programs(monkeypatch):
    for name, function in (
        ("run_forward", run_forward),
        ("run_backward", run_backward),
        ("check_tensors", lambda *_: None),
    ):
        monkeypatch.setattr(packed_heads, name, function)
    monkeypatch.setattr(backends, "import_kernel", lambda _: triton_packed)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def _scalar_code(monkeypatch):
    """Have inductor compile the graph alone: a program for each vector unit, and headers, take 6 s of g++."""
    from torch._inductor import config, cpu_vec_isa

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
    with config.patch(cpp_cache_precompile_headers=False):
        yield


def draw(lengths):
    """q, k, v as a block makes them, v as a view of the fused product; bounds with spare slots."""
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), HEADS, 3, SIZE, requires_grad=True)
    bounds = torch.tensor([0, *lengths, 0, 0]).cumsum(0)
    return qkv, bounds.to(torch.int32)


def attend(qkv, bounds):
    q, k, v = qkv.unbind(2)
    return packed_attention("triton_packed", bounds, 70, len(qkv))(q * 1.0, k * 1.0, v)


def with_gradient(function, qkv, bounds):
    context = function(qkv, bounds)
    weights = torch.linspace(-1, 1, context.numel()).view(context.shape).transpose(0, 1).contiguous()
    (gradient,) = torch.autograd.grad(context, qkv, weights.transpose(0, 1))
    return context.detach(), gradient


@pytest.mark.usefixtures("_plain_programs", "_scalar_code")
@pytest.mark.parametrize("compiles", [False, True])
def test_values_and_gradients_are_those_of_attention_within_segments(compiles):
    function = torch.compile(attend, fullgraph=True, dynamic=True) if compiles else attend
    for lengths in ((5, 1, 0, 70), (3, 64, 2), (14,) * 9):
        qkv, bounds = draw(lengths)
        found = with_gradient(function, qkv, bounds)
        expected = with_gradient(segmented_reference, qkv, bounds)
        for value, truth in zip(found, expected, strict=True):
            torch.testing.assert_close(value, truth, rtol=1e-4, atol=1e-5)


def segmented_reference(qkv, bounds):
    q, k, v = qkv.unbind(2)
    return segmented_sdpa(bounds, 70, len(qkv))(q, k, v)


@pytest.mark.usefixtures("_plain_programs")
def test_the_operators_keep_what_their_fakes_promise():
    qkv, bounds = draw((5, 1, 70))
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    tiles = packed_heads._packed_tiles(bounds, len(qkv))
    torch.library.opcheck(packed_heads._packed_tiles, (bounds, len(qkv)), test_utils=tests[:2])
    torch.library.opcheck(packed_heads._packed_heads, (qkv.flatten(1), tiles, HEADS), test_utils=tests)


def test_an_empty_segment_and_rows_after_the_last_bound_need_no_care():
    bounds = torch.tensor([0, 5, 5, 9], dtype=torch.int32)
    assert segments(packed_heads._packed_tiles(bounds, 12), 12) == [(0, 5), (5, 9), (9, 12)]


def test_tensors_of_a_cpu_are_refused():
    q, k, v = torch.zeros(3, 5, HEADS, SIZE, dtype=torch.bfloat16)
    with pytest.raises(BackendError, match="triton_packed needs CUDA, but the run uses the CPU"):
        triton_packed(torch.tensor([0, 5], dtype=torch.int32), 5, 5)(q, k, v)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "triton_packed"),
        ({"row_length": SHORT + 1}, "flash_attn_4"),
        ({"row_length": None}, "flash_attn_4"),
        ({"head_size": 32}, "flash_attn_4"),
        ({"dtype": "float16"}, "flash_attn_4"),
        ({"features": ("sliding windows",)}, "flash_attn_4"),
        ({"device": "cpu"}, "sdpa"),
    ],
)
def test_auto_takes_it_for_short_rows_only(monkeypatch, changes, name):
    monkeypatch.setattr(backends, "import_kernel", lambda _: None)
    assert choose_backend("auto", HOPPER._replace(**changes)).name == name


def test_auto_passes_over_it_where_triton_does_not_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    backend = choose_backend("auto", HOPPER)
    assert backend.name in [kernel.name for kernel in find_attention_kernels("auto")]
    assert "triton_packed needs triton, which cannot be imported" in backend.reason


def test_auto_passes_over_it_in_a_folder_without_this_project(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "neobert.kernels.packed_heads", None)
    backend = choose_backend("auto", HOPPER)
    assert backend.name in [kernel.name for kernel in find_attention_kernels("auto")]
    with pytest.raises(BackendError, match=r"neobert\.kernels"):
        choose_backend("triton_packed", HOPPER)


def test_it_is_a_value_of_the_config():
    assert "triton_packed" in ATTENTION_CHOICES
    assert "triton_packed" in ATTENTION_BACKENDS
