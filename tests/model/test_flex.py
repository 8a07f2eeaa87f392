"""torch's flex_attention with a mask of documents, held against segmented SDPA. Its gradients need a GPU."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from neobert.model.flex import TILE, document_mask, row_mask

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # of torch's own deprecations, and of dense flex_attention
]

LENGTHS = [(5, 4), (1, 2, 63, 64, 65, 127, 128, 129), (TILE, TILE), (2 * TILE + 1,), (300, 0, 0)]


@pytest.fixture
def dense(monkeypatch):
    """Leave flex_attention uncompiled: the same mask, in seconds less."""
    from neobert.model import flex

    monkeypatch.setattr(flex, "_flex_program", lambda: flex.flex_attention)


def bounds(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_tiles_that_hold_a_pair_of_one_segment_are_visited_and_no_other(lengths):
    total = sum(lengths)
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    pairs = torch.zeros(-(-total // TILE) * TILE, dtype=torch.long) - 1
    pairs[:total] = segment
    tiles = pairs.reshape(-1, TILE)
    wanted = torch.tensor(
        [[bool(((a[:, None] == b) & (a >= 0)[:, None]).any()) for b in tiles] for a in tiles]
    )
    assert torch.equal(document_mask(bounds(lengths), total).to_dense()[0, 0].bool(), wanted)


@pytest.mark.parametrize("lengths", LENGTHS[:2])
def test_flex_gives_what_sdpa_gives(make_model, pack, dense, lengths):
    model, run = make_model().eval(), pack(lengths)
    with torch.no_grad():
        wanted = model(**run.inputs()).logits
        model.config.attn_backend = model.model.config.attn_backend = "flex"
        torch.testing.assert_close(model(**run.inputs()).logits, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 1, 9), (2, 1, 9, 9), (2, 4, 1, 9), (2, 4, 9, 9)])
def test_a_mask_of_rows_hides_what_it_hides_in_sdpa(shape):
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 9, 16, generator=draw)
    mask = torch.rand(shape, generator=draw) > 0.5
    mask[..., 0] = True
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=row_mask(mask)), wanted)


def test_a_planted_leak_moves_the_output(make_model, pack, dense):
    model, run = make_model(attn_backend="flex").eval(), pack((40, 30))
    inputs = run.inputs()
    with torch.no_grad():
        wanted = model(**inputs).logits
        leaking = {**inputs, "cu_seqlens": torch.tensor([0, 41, 70], dtype=torch.int32)}
        assert not torch.allclose(model(**leaking).logits[:40], wanted[:40], atol=1e-3)


def test_the_whole_model_is_one_graph_for_other_documents_too(make_model, pack, dense):
    torch._dynamo.utils.counters.clear()
    model = make_model(attn_backend="flex").eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    runs = [pack(lengths).inputs() for lengths in ((40, 30, 20), (20, 40, 30))]
    with torch.no_grad():
        found = [compiled(**run).logits for run in runs]
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        for run, logits in zip(runs, found, strict=True):
            torch.testing.assert_close(logits, model(**run).logits, rtol=1e-4, atol=1e-5)
