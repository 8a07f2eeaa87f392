"""Tracing packed rows; test_record.py traces padded ones. tests/gpu has the compiled kernels."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_packed_sdpa_says_why_it_is_not(make_model, pack):
    compiled = torch.compile(make_model(), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="compile with a varlen kernel"):
        compiled(**pack((5, 4)).inputs())


def test_packed_sdpa_runs_in_pieces(make_model, pack):
    model, run = make_model(num_hidden_layers=1), pack((5, 4))
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**run.inputs()).logits, model(**run.inputs()).logits)
