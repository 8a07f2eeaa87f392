"""Rows and weights that probes of attention are carried out on. Faults: `families/test_decoder_faults`."""

import pytest
import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.windows import Cursor
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.probes.attention import draw_weights
from neobert.probes.layout import Layout, edge_lengths, with_edge_lengths, with_other_tokens
from neobert.probes.probed_model import convert_embeddings

VOCAB_SIZE, LONGEST, REACH = 97, 160, 8


def full_row(tokens: int = 4 * LONGEST, slots: int = 24) -> Microbatch:
    ids = torch.randint(3, VOCAB_SIZE, (tokens,), generator=torch.Generator().manual_seed(0))
    bounds = torch.full((slots + 1,), tokens, dtype=torch.int32)
    bounds[0] = 0
    return Microbatch(
        input_ids=ids,
        labels=ids.clone(),
        position_ids=torch.arange(tokens),
        cu_seqlens=bounds,
        attention_mask=None,
        max_seqlen=LONGEST,
        num_tokens=tokens,
        num_targets=tokens,
        num_segments=1,
        sample_ids=torch.arange(1),
        groups=torch.arange(slots),
        cursor=Cursor(),
    )


def test_edges_fill_a_row_and_fit_its_slots():
    for total, slots, longest, reach in (
        (640, 24, 160, 8),
        (160, 1, 160, 8),
        (64, 4, 16, 3),
        (320, 2, 160, 8),
    ):
        lengths = edge_lengths(total, slots, longest, reach)
        assert sum(lengths) == total
        assert len(lengths) <= slots
        assert max(lengths) <= longest
    assert edge_lengths(640, 24, 160, 8)[:3] == [10, 1, 2]


def test_every_token_that_is_to_change_changes():
    batch = with_edge_lengths(full_row(), REACH)
    layout = Layout.from_microbatch(batch)
    changed = with_other_tokens(batch, layout.document == 0)
    assert torch.equal(changed.input_ids != batch.input_ids, layout.document == 0)
    assert [len(tokens) for tokens in layout.documents()] == batch.cu_seqlens.diff()[
        : batch.num_segments
    ].tolist()


def test_multiplied_embeddings_are_at_unit_scale_and_in_the_dtype_of_the_stream():
    config = NeoBERTConfig(
        vocab_size=VOCAB_SIZE, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=96, embedding_multiplier=22.6,
    )  # fmt: skip
    model = NeoBERTLMHead(config)
    draw_weights(model, 22.6)
    embeddings = model.get_input_embeddings()
    assert float(22.6 * embeddings.weight.detach().std()) == pytest.approx(1.0, rel=0.05)
    ids = torch.arange(4)
    with convert_embeddings(torch.bfloat16, model):
        assert embeddings(ids).dtype == torch.bfloat16
    with convert_embeddings(None, model):
        assert embeddings(ids).dtype == torch.float32
