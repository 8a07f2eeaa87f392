"""Native sparse attention by flash-linear-attention's kernels: sound, and each planted fault is found."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from neobert.families.backbone import build_backbone
from neobert.families.nsa import model
from neobert.families.nsa.reference import NO_BLOCK, is_forced
from neobert.families.table import model_shape
from neobert.probes import sparse
from neobert.probes.attention_suite import SpecialTokenIds
from neobert.probes.sparse import count_dead_gates
from tests.nsa.probed import (
    GROUP,
    LATER,
    OTHERS,
    OUTPUTS,
    ROTATION,
    SELECTION,
    detach_a_gate,
    missed,
    with_a_duplicate,
    with_heads_in_turns,
)
from tests.nsa.sizes import config_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of flash-linear-attention and triton
pytest.importorskip("fla.ops.nsa", exc_type=ImportError)

DEVICE, DTYPE, ROWS = torch.device("cuda"), torch.bfloat16, 128
SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 2,
    "num_heads": 16,
    "num_kv_heads": 1,
    "head_dim": 64,
    "intermediate_size": 2048,
    "block_size": 64,
    "block_counts": 16,
    "window_size": 512,
}
"""Those of profile nsa-smoke, but for the depth."""
CONFIG = config_of(**SIZES, dataset={"max_seq_length": 2048}, trainer={"mixed_precision": "bf16"})
SPEC = model_shape(CONFIG, ROWS).attention


def missed_on_a_gpu(spec=SPEC):
    return missed(spec, DEVICE, DTYPE)


@pytest.fixture
def operators():
    """The module that calls the kernels."""
    from neobert.families.nsa import operators

    return operators


def test_the_kernels_pass_every_probe():
    assert missed_on_a_gpu() == set()


def own_blocks(cu_seqlens, size):
    places = torch.cat([torch.arange(each, device=cu_seqlens.device) for each in cu_seqlens.diff().tolist()])
    return (places // size)[:, None, None]


def forced_alone(blocks, cu_seqlens, size):
    return torch.where(is_forced(blocks, own_blocks(cu_seqlens, size)), blocks, NO_BLOCK)


def without_the_first(blocks, cu_seqlens, size):
    return torch.where((blocks == 0) & (own_blocks(cu_seqlens, size) > 1), NO_BLOCK, blocks)


@pytest.mark.parametrize("fault", [forced_alone, without_the_first, with_a_duplicate])
def test_another_selection_is_found(monkeypatch, operators, fault):
    real = operators.parallel_nsa_topk

    def faulty(*row, block_size, cu_seqlens, **more):
        found = real(*row, block_size=block_size, cu_seqlens=cu_seqlens, **more)
        return fault(found[0], cu_seqlens, block_size)[None].to(found.dtype)

    monkeypatch.setattr(operators, "parallel_nsa_topk", faulty)
    assert {SELECTION, OUTPUTS} <= missed_on_a_gpu()


def test_a_mean_that_shows_half_of_the_next_block_is_found(monkeypatch, operators):
    real = operators.mean_pooling

    def faulty(x, size, *more):
        return real(x.roll(-(size // 2), 1), size, *more)

    monkeypatch.setattr(operators, "mean_pooling", faulty)
    assert LATER in missed_on_a_gpu()


def test_the_mean_of_all_values_before_the_first_block_is_found(monkeypatch, operators):
    """As a large finite score would give it, in place of an infinite one."""
    real = operators.parallel_nsa_compression

    def faulty(q, k, v, *, block_size, cu_seqlens, **more):
        out, lse = real(q, k, v, block_size=block_size, cu_seqlens=cu_seqlens, **more)
        places = torch.cat([torch.arange(each, device=q.device) for each in cu_seqlens.diff().tolist()])
        return torch.where((places < block_size - 1)[:, None, None], v.mean(1, keepdim=True), out), lse

    monkeypatch.setattr(operators, "parallel_nsa_compression", faulty)
    assert {OUTPUTS, LATER, OTHERS} <= missed_on_a_gpu()


def test_one_document_for_all_is_found(monkeypatch, operators):
    real = operators.Operators.__init__

    def faulty(self, sliding, spec, cu_seqlens, max_seqlen):
        real(self, sliding, spec, cu_seqlens[[0, -1]], int(cu_seqlens[-1]))

    monkeypatch.setattr(operators.Operators, "__init__", faulty)
    assert {OTHERS, OUTPUTS} <= missed_on_a_gpu()


def test_swapped_gates_are_found(monkeypatch, operators):
    real = operators.combine
    monkeypatch.setattr(operators, "combine", lambda branches, gates: real(branches, [*gates][::-1]))
    assert OUTPUTS in missed_on_a_gpu()


def test_scores_that_know_the_whole_row_are_found(monkeypatch, operators):
    real = operators.parallel_nsa_compression

    def faulty(q, k, *row, **more):
        out, lse = real(q, k, *row, **more)
        return out, lse + k.mean()

    monkeypatch.setattr(operators, "parallel_nsa_compression", faulty)
    assert {LATER, OTHERS} <= missed_on_a_gpu()


def test_a_rotation_in_bf16_is_found(monkeypatch):
    monkeypatch.setattr(
        sparse, "compute_rotation", lambda at, *sizes: model.compute_rotation(at.bfloat16(), *sizes)
    )
    assert missed_on_a_gpu() == {ROTATION}


def test_a_gate_without_a_gradient_is_counted(monkeypatch):
    world = SimpleNamespace(device=DEVICE, compute_dtype=DTYPE, size=1)
    torch.manual_seed(3)
    backbone = build_backbone(CONFIG, SpecialTokenIds(), ROWS, world, "AutoModelForCausalLM", {})
    backbone.model.to(DEVICE)
    row = {
        "input_ids": torch.randint(1, ROWS, (1500,), device=DEVICE),
        "position_ids": torch.arange(1500, device=DEVICE) % 700,
        "cu_seqlens": torch.tensor([0, 700, 1400, 1500], dtype=torch.int32, device=DEVICE),
        "max_seqlen": 2048,
    }

    def dead():
        with torch.autocast(DEVICE.type, DTYPE):
            loss = backbone.hidden(row).float().square().sum()
        return count_dead_gates([block.attn for block in backbone.blocks], loss)

    assert dead() == 0
    detach_a_gate(monkeypatch)
    assert dead() == 2 * 16  # layers, heads


@torch.no_grad()
def test_the_librarys_class_has_the_same_logits_and_decodes_as_it_prefills(monkeypatch, tmp_path):
    from fla.models import NSAForCausalLM
    from fla.ops.nsa import parallel

    torch.manual_seed(3)
    own = model.NSAForCausalLM(model.NSAConfig(**SIZES, vocab_size=ROWS, tie_word_embeddings=True))
    own.save_pretrained(tmp_path)
    own = own.to(DEVICE, DTYPE).eval()
    theirs = NSAForCausalLM.from_pretrained(tmp_path, dtype=DTYPE).to(DEVICE).eval()
    ids = torch.randint(1, ROWS, (1, 1500), device=DEVICE)

    def windowed(q, k, v, window_size, **_):
        place = torch.arange(q.shape[1], device=q.device)
        far = place[:, None] - place
        mask = (far >= 0) & (far <= window_size[0])
        heads = (each.transpose(1, 2) for each in (q, k, v))
        return scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    monkeypatch.setattr(parallel, "flash_attn_func", windowed)  # of FlashAttention 2
    expected, found = own(ids).logits.float(), theirs(ids, use_cache=False).logits.float()
    assert (found - expected).abs().max() <= 8 * torch.finfo(DTYPE).eps * expected.abs().max()
    for block in theirs.model.layers:
        block.attn.window_size = 0
    whole, state = theirs(ids, use_cache=False).logits, theirs(ids[:, :1490], use_cache=True)
    for place in range(1490, 1500):
        state = theirs(ids[:, place : place + 1], past_key_values=state.past_key_values, use_cache=True)
        assert torch.equal(state.logits[0, -1], whole[0, place])


def test_heads_of_keys_have_their_own_queries(monkeypatch, operators):
    spec = model_shape(config_of(**SIZES | {"num_heads": 32, "num_kv_heads": 2}), ROWS).attention
    assert missed_on_a_gpu(spec) == set()
    real = operators.Operators.__call__

    def in_turns(self, *row):
        return with_heads_in_turns(partial(real, self), *row)

    monkeypatch.setattr(operators.Operators, "__call__", in_turns)
    assert {OUTPUTS, GROUP} <= missed_on_a_gpu(spec)
