"""Attention logits are measured within documents, and heads above the threshold are cut down to it."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.config.schema import OptimizerConfig
from neobert.families.linear import QKV
from neobert.model.layers import compute_rotation, rotate
from neobert.optim.attention_logits import LogitMeter, attend_and_measure, document_spans, group_into_chunks
from neobert.optim.fused_rows import split_rows
from neobert.optim.qk_clip import QKClip, build_qk_clip, shrink_heads

CPU = torch.device("cpu")
LENGTHS = [9, 1, 20, 5]
NUM_TOKENS, BLOCKS, HEADS = 40, 2, 4
HOT = (1, 2)  # block and head whose queries are made large


def reference_maxima(model, inputs, lengths):
    """The largest logit of each block and head, one document at a time, from the model's own parts."""
    found = []
    for start, length in zip([0, *torch.tensor(lengths).cumsum(0).tolist()], lengths, strict=False):
        logits = []

        def attend(q, k, v, logits=logits):
            scores = torch.einsum("qnh,knh->nqk", q, k) * q.shape[-1] ** -0.5
            logits.append(scores.amax((1, 2)))
            return torch.einsum("nqk,knh->qnh", scores.softmax(-1), v)

        encoder = model.model
        x = encoder.encoder(inputs["input_ids"][start : start + length])
        rotation = compute_rotation(torch.arange(length), encoder.config.dim_head, encoder.config.rope_theta)
        for block in encoder.transformer_encoder:
            x = block(x, rotation.to(x.dtype), attend)
        found.append(torch.stack(logits))
    return torch.stack(found).amax(0)


@pytest.fixture
def hot_model(make_model):
    """A model in fp64 with one head whose logits are far above the others'."""
    model = make_model().double()
    block, head = HOT
    with torch.no_grad():
        for each in model.model.transformer_encoder:
            each.qkv.weight *= 20
        rows = model.model.transformer_encoder[block].qkv.weight.unflatten(0, (HEADS, 3, -1))
        rows[head, 0] *= 10
    return model


@pytest.mark.parametrize("chunk_size", [1, 7, 16, 1024])
def test_the_measure_is_the_largest_logit_of_each_document(hot_model, make_packed, chunk_size):
    inputs = make_packed(LENGTHS, NUM_TOKENS)
    measured = LogitMeter(hot_model.model, chunk_size).measure(inputs)
    expected = reference_maxima(hot_model, inputs, LENGTHS)
    assert measured.shape == (BLOCKS, HEADS)
    assert measured.argmax().item() == HOT[0] * HEADS + HOT[1]
    torch.testing.assert_close(measured, expected, rtol=1e-5, atol=1e-6)


def test_rows_are_measured_as_packed_documents_are(hot_model, make_packed):
    inputs = make_packed(LENGTHS, NUM_TOKENS)
    rows = {"input_ids": torch.zeros(4, 24, dtype=torch.int64), "cu_seqlens": None}
    rows["position_ids"], rows["attention_mask"] = rows["input_ids"].clone(), torch.zeros(4, 24).bool()
    for row, (start, length) in enumerate(zip([0, 9, 10, 30], LENGTHS, strict=True)):
        rows["input_ids"][row, :length] = inputs["input_ids"][start : start + length]
        rows["position_ids"][row, :length] = torch.arange(length)
        rows["attention_mask"][row, :length] = True
    meter = LogitMeter(hot_model.model, 16)
    torch.testing.assert_close(meter.measure(rows), meter.measure(inputs))


def test_pairs_over_a_boundary_and_padding_do_not_count():
    q = k = torch.tensor([1.0, 1.0, 100.0, 1.0, 500.0, 500.0])[:, None, None]
    bounds = torch.tensor([0, 2, 4, 6, 6])
    inputs = {"input_ids": torch.tensor([5, 5, 5, 5, 0, 0]), "cu_seqlens": bounds}
    documents = document_spans(inputs, pad_id=0)
    assert documents == [(0, 2), (2, 4)]
    k = k.clone()
    k[2] = 1.0  # 100 x 1 within the second document
    k[0] = 50.0  # 100 x 50 over the boundary, 1 x 50 within the first
    _, highest = attend_and_measure(q, k, q, group_into_chunks(documents, 4, CPU), 4)
    assert highest.item() == 100.0
    one_document = group_into_chunks([(0, 4)], 4, CPU)
    assert attend_and_measure(q, k, q, one_document, 4)[1].item() == 5000.0  # negative control


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), chunk_size=st.integers(1, 12))
def test_chunks_hold_every_document_once(lengths, chunk_size):
    ends = torch.tensor(lengths).cumsum(0).tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    chunks = group_into_chunks(spans, chunk_size, CPU)
    assert [chunk.start for chunk in chunks] == [0, *[chunk.end for chunk in chunks[:-1]]]
    assert chunks[-1].end == ends[-1]
    for chunk in chunks:
        is_single = (chunk.start, chunk.end) in spans
        assert is_single == (chunk.is_same is None)
        assert is_single or chunk.end - chunk.start <= chunk_size


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_the_largest_logit_becomes_the_threshold(hot_model, make_packed, alpha):
    inputs, (block, head) = make_packed(LENGTHS, NUM_TOKENS), HOT
    meter = LogitMeter(hot_model.model, 16)
    before = meter.measure(inputs)
    threshold = (before[block, head] / 3).item()
    weight = hot_model.model.transformer_encoder[block].qkv.weight
    q, k, v = (part.clone() for part in split_rows(weight.detach(), QKV, HEADS))
    shrink_heads(weight, before[block], threshold, alpha)
    after = meter.measure(inputs)
    assert after[block, head].item() == pytest.approx(threshold, rel=1e-5)
    assert torch.equal(after[0], before[0])
    others = [each for each in range(HEADS) if each != head]
    assert torch.equal(after[block, others], before[block, others])
    rows = slice(head * 8, head * 8 + 8)
    new_q, new_k, new_v = split_rows(weight.detach(), QKV, HEADS)
    torch.testing.assert_close(new_q[rows], q[rows] * (1 / 3) ** alpha)
    torch.testing.assert_close(new_k[rows], k[rows] * (1 / 3) ** (1 - alpha))
    assert torch.equal(new_v, v)


def test_a_wrong_layout_of_heads_misses_the_threshold(hot_model, make_packed):
    """Negative control: rows taken for [Q; K; V] of all heads."""
    inputs, (block, head) = make_packed(LENGTHS, NUM_TOKENS), HOT
    meter = LogitMeter(hot_model.model, 16)
    before = meter.measure(inputs)[block]
    weight = hot_model.model.transformer_encoder[block].qkv.weight
    with torch.no_grad():
        factor = (1 / 3) ** 0.5
        weight.unflatten(0, (3, HEADS, -1))[:2, head] *= factor
    after = meter.measure(inputs)[block]
    assert after[head].item() != pytest.approx(before[head].item() / 3, rel=0.05)


def test_a_factor_commutes_with_the_rotation():
    torch.manual_seed(0)
    x, factor = torch.randn(7, 2, 8), 0.37**0.5
    rotation = compute_rotation(torch.arange(7), 8, 10_000.0)
    torch.testing.assert_close(rotate(x * factor, rotation), rotate(x, rotation) * factor)
    reversed_rows = x.flip(-1)
    assert not torch.allclose(rotate(reversed_rows, rotation), rotate(x, rotation).flip(-1))


@pytest.mark.parametrize("largest", [49.9, 50.0, float("nan"), float("inf"), float("-inf")])
def test_heads_that_are_low_or_no_number_stay(largest):
    weight = torch.randn(3 * 2 * 4, 8)
    before = weight.clone()
    shrink_heads(weight, torch.tensor([largest, 1.0]), 50.0, 0.5)
    assert torch.equal(weight, before)


def test_the_clip_is_due_on_its_interval(make_model):
    config = OptimizerConfig(name="muonclip", qk_clip_interval=3)
    clip = build_qk_clip(config, make_model())
    assert [step for step in range(1, 10) if clip.is_due(step)] == [3, 6, 9]
    assert build_qk_clip(OptimizerConfig(name="muon"), make_model()) is None


def test_the_clip_cuts_every_block_by_what_was_measured_before_any_cut(hot_model, make_packed):
    inputs, by_hand = make_packed(LENGTHS, NUM_TOKENS), copy.deepcopy(hot_model)
    measured = LogitMeter(by_hand.model, 16).measure(inputs)
    threshold = measured.min().item() / 2
    clip = QKClip(hot_model.model, threshold=threshold, alpha=0.5, interval=1, chunk_size=16)
    clip(inputs)
    assert torch.equal(clip.highest, measured)
    for block, largest in zip(by_hand.model.transformer_encoder, measured, strict=True):
        shrink_heads(block.qkv.weight, largest, threshold, 0.5)
    for ours, theirs in zip(hot_model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    first = LogitMeter(hot_model.model, 16).measure(inputs)[0]
    torch.testing.assert_close(first, torch.full_like(first, threshold), rtol=1e-5, atol=0)


def test_measuring_changes_neither_weights_nor_gradients(make_model, make_packed):
    model, inputs = make_model(), make_packed(LENGTHS, NUM_TOKENS)
    before = copy.deepcopy(model.state_dict())
    LogitMeter(model.model, 16).measure(inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("changes", [{}, {"embedding_multiplier": 5.0}, {"hidden_act": "gelu"}])
def test_the_pass_of_the_meter_is_the_models_own(make_model, make_packed, changes):
    """What it attends to is what the model attends to: the last block's logits depend on all before it."""
    model, inputs = make_model(**changes), make_packed(LENGTHS, NUM_TOKENS)
    contexts = []
    model.model.transformer_encoder[1].wo.register_forward_hook(lambda _, args, __: contexts.append(args[0]))
    with torch.no_grad():
        model.model(**inputs)
    meter, seen = LogitMeter(model.model, 16), []
    meter._template.wo.register_forward_hook(lambda _, args, __: seen.append(args[0]))
    meter.measure(inputs)
    torch.testing.assert_close(seen[1][: sum(LENGTHS)], contexts[0][: sum(LENGTHS)])


def test_a_weight_of_queries_alone_is_refused():
    with pytest.raises(ValueError, match="32 rows cannot be split into Q, K and V of 4 heads"):
        shrink_heads(torch.zeros(32, 32), torch.full((4,), 9.0), threshold=1.0, alpha=0.5)
