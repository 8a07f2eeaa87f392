"""The reference against the definition token by token, and against flash-linear-attention where it is."""

import pytest
import torch
from torch import Tensor

from neobert.families.attention import SelectedBlocks
from neobert.families.nsa.by_token import attend_by_token
from neobert.families.nsa.reference import attend, block_means
from tests.nsa.sizes import LENGTHS, LONGEST, SPEC, bounds_of, queries_keys_values

TOTAL = sum(LENGTHS)


def as_sets(blocks: Tensor) -> list[list[set[int]]]:
    return [[{block for block in head if block >= 0} for head in token] for token in blocks.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_documents_are_what_the_definition_says_of_each_alone(dtype):
    row = queries_keys_values(TOTAL, dtype)
    found = attend(*row, bounds_of(LENGTHS), LONGEST, SPEC)
    assert found.context.dtype == dtype
    close = 1e-5 if dtype == torch.float32 else 1e-2
    documents = zip(*(each.split(LENGTHS) for each in (*row, found.context, found.blocks)), strict=True)
    for *document, context, blocks in documents:
        expected, chosen = attend_by_token(*document, SPEC)
        assert (context - expected).abs().max() <= close
        assert as_sets(blocks) == [[set(head) for head in token] for token in chosen]


@pytest.mark.parametrize("spec", [SPEC, SelectedBlocks(16, 8, 5)])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 37, 191, 300])
def test_pairs_and_reads_are_those_of_each_token(spec, length):
    selected = [min(spec.counts, t // spec.size + 1) for t in range(length)]
    pairs = sum(
        (t + 1) // spec.size + (count - 1) * spec.size + t % spec.size + 1 + min(t + 1, spec.window)
        for t, count in enumerate(selected)
    )
    assert (spec.num_selected_blocks(length), spec.num_attended_pairs(length)) == (sum(selected), pairs)


def test_a_token_selects_as_many_blocks_as_the_plan_counts():
    blocks = attend(*queries_keys_values(LONGEST), bounds_of((LONGEST,)), LONGEST, SPEC).blocks
    assert [int((head >= 0).sum()) for head in blocks.unbind(1)] == [SPEC.num_selected_blocks(LONGEST)] * 2


def test_the_reference_is_the_formula_of_flash_linear_attention():
    """Its three naive functions, which run on a CPU; its pooling does not."""
    naive = pytest.importorskip("fla.ops.nsa.naive", exc_type=ImportError)
    q, k, v, gates = row = queries_keys_values(TOTAL)
    found, bounds = attend(*row, bounds_of(LENGTHS), LONGEST, SPEC), bounds_of(LENGTHS)[:-1].long()
    means = [torch.cat([block_means(each, SPEC.size) for each in x.split(LENGTHS)])[None] for x in (k, v)]
    scale, q, k, v = q.shape[-1] ** -0.5, q[None], k[None], v[None]
    compressed, lse = naive.naive_nsa_compression(q, *means, SPEC.size, scale, bounds)
    blocks = naive.naive_nsa_topk(q, means[0], SPEC.counts, SPEC.size, scale, bounds)
    selected = naive.naive_nsa_selection(q, k, v, blocks, SPEC.size, scale, bounds)
    assert as_sets(found.blocks) == as_sets(blocks[0])
    assert torch.allclose(found.lse, lse[0], atol=1e-5)
    only = gates * torch.tensor([1.0, 1.0, 0.0])
    expected = compressed[0] * gates[..., :1] + selected[0] * gates[..., 1:2]
    own = attend(row[0], row[1], row[2], only, bounds_of(LENGTHS), LONGEST, SPEC).context
    assert torch.allclose(own, expected, atol=1e-5)


def test_no_row_changes_a_constant_of_flas_kernels():
    operators = pytest.importorskip("neobert.families.nsa.operators", exc_type=ImportError)
    of_rows = [operators.parallel.prepare_lens(bounds_of(each)) for each in ((3, 9), (64, 1))]
    assert {each.max().item() for each in of_rows} == {2**30}
