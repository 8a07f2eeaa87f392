"""The plain reference against loops over queries, heads and keys; and kernels against the reference."""

import math
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

from neobert.families.attention import AttentionSpec, Window
from neobert.families.packed_attention import packed_attention, varlen_options
from neobert.families.packed_flex import ALL, reached_tiles
from neobert.kernel_table import ATTENTION, Environment
from neobert.kernels.plain_attention import attended_mask, plain_attention
from neobert.model import attention as in_both_directions
from neobert.model import flex
from neobert.model.backends import LOADED
from neobert.model.flex import TILE

SPECS = st.builds(
    lambda kv_heads, per_group, reach, **rest: AttentionSpec(
        heads=kv_heads * per_group,
        kv_heads=kv_heads,
        head_size=4,
        window=None if reach is None else Window((0,), reach),
        **rest,
    ),
    kv_heads=st.integers(1, 3),
    per_group=st.integers(1, 3),
    reach=st.none() | st.integers(0, 9),
    direction=st.sampled_from(["bidirectional", "causal"]),
    scale=st.none() | st.floats(0.01, 2.0),
    softcap=st.none() | st.floats(0.1, 30.0),
)


def drawn(spec: AttentionSpec, length: int, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    return [
        torch.randn(length, heads, spec.head_size, generator=draw, dtype=torch.float64)
        for heads in (spec.heads, spec.kv_heads, spec.kv_heads)
    ]


def by_loops(q, k, v, spec: AttentionSpec):
    """The definition, one number after the other."""
    length, out = len(q), torch.zeros_like(q)
    for query in range(length):
        for head in range(spec.heads):
            group = head // (spec.heads // spec.kv_heads)
            weights = {}
            for key in range(length):
                if spec.direction == "causal" and key > query:
                    continue
                if spec.window is not None and abs(query - key) > spec.window.reach:
                    continue
                scale = spec.head_size**-0.5 if spec.scale is None else spec.scale
                score = scale * sum(float(q[query, head, c] * k[key, group, c]) for c in range(4))
                if spec.softcap is not None:
                    score = spec.softcap * math.tanh(score / spec.softcap)
                weights[key] = math.exp(score)
            for key, weight in weights.items():
                out[query, head] += weight / sum(weights.values()) * v[key, group]
    return out


@settings(max_examples=40, deadline=None)
@given(SPECS, st.integers(1, 7), st.integers(0, 99))
def test_the_reference_is_the_definition(spec, length, seed):
    q, k, v = drawn(spec, length, seed)
    assert torch.allclose(plain_attention(q, k, v, spec), by_loops(q, k, v, spec), atol=1e-12)


def test_rows_are_attended_one_by_one():
    spec = AttentionSpec(heads=4, kv_heads=2, head_size=4, direction="causal")
    rows = [drawn(spec, 5, seed) for seed in (1, 2)]
    together = plain_attention(*(torch.stack(each) for each in zip(*rows, strict=True)), spec)
    for row, alone in zip(together, rows, strict=True):
        assert torch.allclose(row, plain_attention(*alone, spec), atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_computes_in_the_type_of_its_inputs(dtype):
    spec = AttentionSpec(heads=2, kv_heads=2, head_size=4)
    q, k, v = drawn(spec, 40)
    given = plain_attention(q.to(dtype), k.to(dtype), v.to(dtype), spec)
    assert given.dtype == dtype
    error = (given - plain_attention(q, k, v, spec)).abs().max()
    assert 0 < error < (1e-6 if dtype == torch.float32 else 3e-2)


@settings(max_examples=40, deadline=None)
@given(SPECS, st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 99))
def test_packed_sdpa_is_the_reference_of_each_document(spec, lengths, seed):
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, v = drawn(spec, bounds[-1], seed)
    if not bounds[-1]:
        return
    attend = packed_attention("sdpa", torch.tensor(bounds), 20, bounds[-1], spec)
    wanted = [plain_attention(q[a:b], k[a:b], v[a:b], spec) for a, b in pairwise(bounds) if b > a]
    assert torch.allclose(attend(q, k, v), torch.cat(wanted), atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(max_examples=30, deadline=None)
@given(SPECS, st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 99))
def test_packed_flex_is_the_reference_of_each_document(spec, lengths, seed):
    """Without compilation, which no CPU needs: every pair by the functions of mask and scores."""
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, v = (each.float() for each in drawn(spec, bounds[-1], seed))
    with mock.patch.object(flex, "_flex_program", return_value=torch_flex.flex_attention):
        attended_to = packed_attention("flex", torch.tensor(bounds), 20, bounds[-1], spec)(q, k, v)
    wanted = [plain_attention(q[a:b], k[a:b], v[a:b], spec) for a, b in pairwise(bounds)]
    assert torch.allclose(attended_to, torch.cat(wanted), atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=8),
    st.sampled_from([None, 0, 1, 127, 200]),
    st.booleans(),
)
def test_flex_walks_every_tile_that_holds_a_pair_and_few_others(lengths, reach, is_causal):
    total = sum(lengths)
    if not total:
        return
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    later = 0 if is_causal else ALL if reach is None else reach
    segment, counts, indices = reached_tiles(bounds, total, ALL if reach is None else reach, later)
    spec = windowed(direction="causal" if is_causal else "bidirectional")
    spec = replace(spec, window=None if reach is None else Window((0,), reach))
    is_pair = attended_mask(total, spec) & (segment[:, None] == segment)
    held = torch.zeros(len(counts), len(counts), dtype=torch.bool)
    queries, keys = is_pair.nonzero(as_tuple=True)
    held[queries // TILE, keys // TILE] = True
    walked = torch.zeros_like(held)
    for tile, (count, row) in enumerate(zip(counts.tolist(), indices.tolist(), strict=True)):
        walked[tile, row[:count]] = True
    assert not (held & ~walked).any()
    assert walked.sum() <= held.sum() + 2 * len(counts)  # at the ends of documents within a tile


def windowed(**rest) -> AttentionSpec:
    return AttentionSpec(heads=4, kv_heads=2, head_size=8, window=Window((0,), 5), **rest)


@pytest.mark.parametrize(
    ("name", "spec", "options"),
    [
        ("torch_varlen", windowed(), {"window_size": (5, 5), "scale": None}),
        ("torch_varlen", windowed(direction="causal", scale=0.5), {"window_size": (5, 0), "scale": 0.5}),
        ("torch_varlen", windowed(direction="causal").for_layer(1), {"window_size": (-1, 0), "scale": None}),
        (
            "flash_attn_2",
            windowed(direction="causal", softcap=3.0),
            {"window_size": (5, 0), "softmax_scale": None, "causal": True, "softcap": 3.0},
        ),
        (
            "flash_attn_4",
            windowed(direction="causal", scale=0.5),
            {"window_size": (5, 0), "softmax_scale": 0.5, "causal": True},
        ),
        ("flash_attn_3", windowed(), {"window_size": (5, 5), "softmax_scale": None, "causal": False}),
    ],
)
def test_a_varlen_kernel_is_given_the_attention_of_the_block(name, spec, options):
    assert varlen_options(name, spec) == options


def test_torchs_kernel_is_given_one_key_head_for_each_query_head(monkeypatch):
    given = {}

    def kernel(q, k, v, *bounds, **options):
        given.update(options, k=k, v=v, bounds=bounds)
        return q

    monkeypatch.setattr(in_both_directions, "load_attention", lambda name: True)
    monkeypatch.setattr(in_both_directions, "check_tensors", lambda *_: None)
    monkeypatch.setitem(LOADED, "torch_varlen", kernel)
    spec = windowed(direction="causal")
    q, k, v = torch.randn(6, 4, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    packed_attention("torch_varlen", torch.tensor([0, 6]), 6, 6, spec)(q, k, v)
    assert torch.equal(given["k"], k[:, [0, 0, 1, 1]])
    assert torch.equal(given["v"], v[:, [0, 0, 1, 1]])
    assert given["window_size"] == (5, 0)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_causal_model_never_runs_a_kernel_of_both_directions(name):
    """The blocks' own kernel attends in both directions; those of sparse attention do not attend densely."""
    kernel, spec = ATTENTION[name], windowed(direction="causal")
    obstacle = kernel.obstacle(Environment("cuda", "bfloat16", 64, (), spec.features))
    assert (obstacle is not None) == (name in ("triton_packed", "nsa_reference", "nsa_fla"))
    if name == "triton_packed":
        assert obstacle is not None
        assert obstacle.message == f"{name} does not compute causal attention, which the model needs"
