"""The tables that the attention programs walk: every row in one tile, every tile within one segment."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.kernels.attention import attention_tiles, rotary_table
from neobert.model.layers import compute_rotation

lengths = st.lists(st.integers(0, 200), min_size=1, max_size=12)


@given(lengths, st.integers(0, 200), st.integers(0, 3), st.sampled_from([16, 64, 128]))
def test_tiles_cover_every_row_once(lengths, num_padding, spare_slots, block):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    bounds = torch.cat([bounds, bounds[-1:].expand(spare_slots)]).to(torch.int32)
    total = sum(lengths) + num_padding
    tiles = attention_tiles(bounds, total, block)
    assert tiles.shape == (3, total // block + len(bounds))
    assert tiles.dtype == torch.int32
    segments = {(a, b) for a, b in zip([*bounds.tolist()], [*bounds.tolist()[1:], total], strict=True)}
    rows: list[int] = []
    for first, begin, end in tiles.t().tolist():
        if first < end:
            assert (begin, end) in segments
            rows += range(first, min(first + block, end))
    assert sorted(rows) == list(range(total))


@given(lengths)
def test_the_longest_segments_come_first(lengths):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    first, begin, end = attention_tiles(bounds, sum(lengths), 64)
    used = (end - begin)[first < end]
    assert used.tolist() == sorted(used.tolist(), reverse=True)
    assert not (first < end)[len(used) :].any()


@pytest.mark.parametrize("head_dim", [2, 64])
def test_rotary_pairs_are_the_models_and_leave_values_alone(head_dim):
    positions = torch.tensor([0, 1, 2, 0, 8191])
    table = rotary_table(positions, head_dim, 10_000.0)
    queries, keys, values = table.unflatten(1, (3, head_dim // 2, 2)).unbind(1)
    wanted = compute_rotation(positions, head_dim, 10_000.0)[:, 0]
    torch.testing.assert_close(queries, wanted, rtol=0, atol=0)
    assert torch.equal(queries, keys)
    assert torch.equal(values, torch.tensor([1.0, 0.0]).expand_as(values))
