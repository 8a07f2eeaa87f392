"""Stacked weights come apart where the model reads them apart, and come together again."""

import pytest
import torch

from neobert.families.linear import GATE_UP, QKV, QKV_BY_HEAD, WHOLE
from neobert.model.layers import SwiGLU
from neobert.optim.fused_rows import expand_head_factors, join_rows, split_rows


@pytest.mark.parametrize("layout", [QKV, QKV_BY_HEAD, GATE_UP, WHOLE])
@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_joining_undoes_splitting(layout, num_heads):
    weight = torch.randn(3 * 8, 8)
    parts = split_rows(weight, layout, num_heads)
    assert len(parts) == {QKV: 3, QKV_BY_HEAD: 3 * num_heads, GATE_UP: 2, WHOLE: 1}[layout]
    assert torch.equal(join_rows(parts, layout, num_heads), weight)


def test_queries_keys_and_values_are_what_the_model_reads(make_model):
    model = make_model()
    block, x = model.model.transformer_encoder[0], torch.randn(5, 32)
    seen = {}

    def attend(q, k, v):
        seen.update(q=q, k=k, v=v)
        return v

    block._attention(x, None, attend)
    for part, name in zip(split_rows(block.qkv.weight, QKV, block.num_heads), "qkv", strict=True):
        torch.testing.assert_close(x @ part.T, seen[name].flatten(1))
    by_head = split_rows(block.qkv.weight, QKV_BY_HEAD, block.num_heads)
    for number, part in enumerate(by_head):
        head, name = divmod(number, 3)
        torch.testing.assert_close(x @ part.T, seen["qkv"[name]][:, head])


def test_gate_and_up_are_what_the_model_reads():
    ffn, x = SwiGLU(8, 12, "torch"), torch.randn(5, 8)
    gate, up = split_rows(ffn.w12.weight, GATE_UP, 1)
    expected = ffn.w3(torch.nn.functional.silu(x @ gate.T) * (x @ up.T))
    torch.testing.assert_close(ffn(x), expected)


def test_head_rows_reach_the_queries_and_keys_of_their_head_alone():
    weight = torch.ones(3 * 2 * 3, 5)
    rows = expand_head_factors(torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0]), head_dim=3)
    q, k, v = split_rows(weight * rows, QKV, num_heads=2)
    assert q[:, 0].tolist() == [2.0] * 3 + [3.0] * 3
    assert k[:, 0].tolist() == [5.0] * 3 + [7.0] * 3
    assert v.unique().tolist() == [1.0]
