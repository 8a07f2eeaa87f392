"""Replicas are compared by a sum of bits; the flip of one in a rank of two is in `tests/faults`."""

import pytest
import torch
from torch import nn

from neobert.training.guards.replicas import checksum, differing_ranks


@pytest.mark.parametrize("bit", [0, 22, 23, 31])
def test_one_flipped_bit_changes_the_sum(bit):
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    before = int(checksum(model))
    assert int(checksum(model)) == before
    with torch.no_grad():
        model.weight.view(torch.int32)[1, 2] ^= torch.tensor(1 << bit, dtype=torch.int64).to(torch.int32)
    assert int(checksum(model)) != before


def test_weights_that_changed_places_are_others():
    model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    before = int(checksum(model))
    first, second = (each.weight.detach().clone() for each in model)
    with torch.no_grad():
        model[0].weight.copy_(second)
        model[1].weight.copy_(first)
    assert int(checksum(model)) != before


@pytest.mark.parametrize(
    ("sums", "num_shards", "ranks"),
    [
        ([4, 4], 1, []),
        ([4, 5], 1, [0, 1]),
        ([4, 4, 5], 1, [2]),
        ([4, 5, 6], 1, [0, 1, 2]),
        ([5, 4, 4, 4, 3], 1, [0, 4]),
        ([4, 5, 4, 5], 2, []),
        ([4, 5, 4, 6], 2, [1, 3]),
        ([4, 5, 4, 6, 9, 5], 2, [3, 4]),
    ],
)
def test_ranks_beside_the_majority_of_their_shard_are_named(sums, num_shards, ranks):
    assert differing_ranks(sums, num_shards) == ranks
