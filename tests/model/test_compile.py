"""Tracing the model as one graph. The compiled kernels themselves are tested under tests/gpu."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_padded_rows_are_one_graph(make_model):
    model = make_model()
    ids, mask = torch.randint(5, 96, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(ids, mask).logits, model(ids, mask).logits, rtol=0, atol=1e-5)


def test_packed_sdpa_says_why_it_is_not(make_model, pack):
    compiled = torch.compile(make_model(), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="compile a varlen kernel"):
        compiled(**pack((5, 4)).inputs())


def test_packed_sdpa_runs_in_pieces(make_model, pack):
    model, run = make_model(), pack((5, 4))
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**run.inputs()).logits, model(**run.inputs()).logits)
