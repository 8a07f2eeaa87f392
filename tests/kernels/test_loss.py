"""The chunked decoder and cross-entropy against the whole one, on a CPU."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from neobert.families.neobert.build import backbone_from_model
from neobert.kernels import vocabulary as loss_module
from neobert.kernels.vocabulary import linear_cross_entropy
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.objectives import TokenObjective, tokens
from neobert.plan import memory as plan_memory
from neobert.plan.memory import WHOLE_VALUES, rows_per_chunk

VOCAB, HIDDEN = 37, 8


def draw(rows, is_target, seed=0, dtype=torch.float32, bias=True):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, HIDDEN, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=dtype).requires_grad_()
    shift = torch.randn(VOCAB, generator=generator, dtype=dtype).requires_grad_() if bias else None
    labels = torch.randint(VOCAB, (rows,), generator=generator)
    return hidden, weight, shift, torch.where(torch.tensor(is_target, dtype=torch.bool), labels, -100)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=24), st.integers(1, 30), st.booleans(), st.integers(0, 99))
def test_chunks_give_the_loss_and_gradients_of_the_whole(is_target, rows_per_chunk, bias, seed):
    hidden, weight, shift, labels = draw(len(is_target), is_target, seed, bias=bias)
    inputs = [each for each in (hidden, weight, shift) if each is not None]
    loss = linear_cross_entropy(hidden, weight, shift, labels, rows_per_chunk, "torch")
    whole = F.cross_entropy(F.linear(hidden, weight, shift), labels, reduction="sum")
    torch.testing.assert_close(loss, whole, rtol=1e-6, atol=1e-6)
    found, wanted = (torch.autograd.grad(each * 0.3, inputs) for each in (loss, whole))
    for one, other in zip(found, wanted, strict=True):
        scale = 1e-6 * max(1.0, other.norm().item())
        assert (one - other).norm() <= scale


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=24),
    st.integers(1, 30),
    st.floats(1e-4, 0.5),
    st.booleans(),
    st.sampled_from([None, 2.0]),
)
def test_chunks_carry_the_z_loss_and_the_soft_cap(is_target, rows_per_chunk, z_loss, bias, softcap):
    hidden, weight, shift, labels = draw(len(is_target), is_target, dtype=torch.float64, bias=bias)
    inputs = [each for each in (hidden, weight, shift) if each is not None]
    loss = linear_cross_entropy(hidden, weight, shift, labels, rows_per_chunk, "torch", z_loss, softcap)
    every = F.linear(hidden, weight, shift)
    every = every if softcap is None else softcap * (every / softcap).tanh()
    logits = every[labels >= 0]
    wanted = F.cross_entropy(logits, labels[labels >= 0], reduction="sum")
    wanted = wanted + z_loss * logits.exp().sum(1).log().square().sum()
    torch.testing.assert_close(loss, wanted)
    found, exact = (torch.autograd.grad(each * 0.3, inputs) for each in (loss, wanted))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)
    whole = tokens.summed_loss(every, labels, z_loss)
    torch.testing.assert_close(whole.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_target", [(), (False, False, False), (False, True, False, False)])
def test_no_target_and_a_single_one(is_target):
    hidden, weight, shift, labels = draw(len(is_target), is_target)
    loss = linear_cross_entropy(hidden, weight, shift, labels, 2, "torch")
    loss.backward()
    assert (loss == 0) == (not any(is_target))
    assert (hidden.grad[labels < 0] == 0).all()
    assert weight.grad.any() == any(is_target)


def test_a_frozen_weight_has_no_gradient_and_the_others_keep_theirs():
    hidden, weight, shift, labels = draw(9, [True, False, True] * 3)
    trained = linear_cross_entropy(hidden, weight, shift, labels, 4, "torch")
    wanted = torch.autograd.grad(trained, (hidden, shift))
    loss = linear_cross_entropy(hidden, weight.detach(), shift, labels, 4, "torch")
    assert torch.equal(loss, trained)
    computed = loss_module._linear_cross_entropy(
        hidden, weight.detach(), shift, labels, 4, "torch", 0.0, None, False
    )
    assert computed[2].shape == (0, HIDDEN)
    for one, other in zip(torch.autograd.grad(loss, (hidden, shift)), wanted, strict=True):
        assert torch.equal(one, other)


def test_gradients_in_fp64():
    hidden, weight, shift, labels = draw(7, [True, False] * 3 + [True], dtype=torch.float64)
    function = lambda *inputs: linear_cross_entropy(*inputs, labels, 3, "torch")  # noqa: E731
    assert torch.autograd.gradcheck(function, (hidden, weight, shift), check_undefined_grad=False)


def test_a_planted_fault_is_seen(monkeypatch):
    """The comparison is worth something: a chunk that forgets its bias fails it."""
    sound = loss_module.PROGRAMS["torch"]
    monkeypatch.setitem(loss_module.PROGRAMS, "torch", lambda x, bias, *rest: sound(x, None, *rest))
    hidden, weight, shift, labels = draw(9, [True] * 9)
    whole = F.cross_entropy(F.linear(hidden, weight, shift), labels, reduction="sum")
    loss = linear_cross_entropy(hidden, weight, shift, labels, 4, "torch")
    assert abs(loss - whole) > 1e-3


class Largest(TorchDispatchMode):
    """The most rows of logits, [rows, VOCAB], that any operator returned."""

    def __init__(self):
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "neobert":  # look into the operator, not only at what it returns
            with self:
                return function.__wrapped__(*args, **(kwargs or {}))
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor) and each.dim() == 2 and each.shape[1] == VOCAB:
                self.rows = max(self.rows, each.shape[0])
        return result


@pytest.fixture
def objective(monkeypatch):
    """An objective whose decoder scores 128 rows at a time, as if its vocabulary were large."""
    monkeypatch.setattr(plan_memory, "WHOLE_VALUES", 0)
    monkeypatch.setattr(plan_memory, "MIN_ROWS", 128)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return TokenObjective(backbone_from_model(NeoBERTLMHead(NeoBERTConfig(vocab_size=VOCAB, **shape))), False)


def run(rows=300):
    ids = torch.arange(rows) % VOCAB
    labels = torch.where(torch.arange(rows) % 3 == 0, ids, -100)
    bounds = torch.tensor([0, rows], dtype=torch.int32)
    return {"num_targets": 100, "labels": labels, "input_ids": ids, "cu_seqlens": bounds, "max_seqlen": rows}


@pytest.mark.parametrize("whole_values", [0, WHOLE_VALUES])
def test_the_z_loss_is_added_in_training_and_not_in_evaluations(objective, monkeypatch, whole_values):
    monkeypatch.setattr(plan_memory, "WHOLE_VALUES", whole_values)
    plain, scored = objective(**run()), objective.evaluate(**run())
    objective.z_loss = 0.01
    logits = objective.logits(
        objective.encode({k: v for k, v in run().items() if k not in ("num_targets", "labels")})
    )
    added = 0.01 * logits[run()["labels"] >= 0].logsumexp(1).square().sum()
    torch.testing.assert_close(objective(**run()) - plain, added, rtol=1e-4, atol=1e-4)
    assert torch.equal(objective.evaluate(**run()).loss_sum, scored.loss_sum)


@pytest.mark.parametrize("step", ["forward", "evaluate"])
def test_no_more_than_a_chunk_of_logits_exists_at_once(objective, monkeypatch, step):
    with Largest() as largest:
        result = getattr(objective, step)(**run())
        if step == "forward":
            result.backward()
    assert largest.rows == 128
    monkeypatch.setattr(plan_memory, "WHOLE_VALUES", WHOLE_VALUES)
    with Largest() as largest:
        whole = getattr(objective, step)(**run())
    assert largest.rows == 300
    torch.testing.assert_close(values_of(result), values_of(whole), rtol=1e-6, atol=0)


def values_of(result):
    values = [result] if isinstance(result, torch.Tensor) else result
    return [value for value in values if value is not None]


def test_under_autocast_products_are_computed_in_bf16(objective, monkeypatch):
    seen = []
    sound = tokens.linear_cross_entropy
    monkeypatch.setattr(
        tokens,
        "linear_cross_entropy",
        lambda hidden, *rest, **named: seen.append(hidden.dtype) or sound(hidden, *rest, **named),
    )
    with torch.autocast("cpu", torch.bfloat16):
        chunked = objective(**run())
    chunked.backward()
    assert seen == [torch.bfloat16]
    assert objective.model.decoder.weight.grad.dtype == torch.float32
    assert chunked.item() == pytest.approx(objective(**run()).item(), rel=1e-2)


def test_few_logits_are_computed_at_once_and_many_in_chunks():
    assert rows_per_chunk(0, 30_592) == 1
    assert rows_per_chunk(WHOLE_VALUES // 30_592, 30_592) == WHOLE_VALUES // 30_592
    assert rows_per_chunk(WHOLE_VALUES // 30_592 + 1, 30_592) == 8192
    assert rows_per_chunk(32_768, 49_152) == 5120
    assert rows_per_chunk(32_768, 151_936) == rows_per_chunk(32_768, 2**30) == 1024
    assert rows_per_chunk(32_768, 49_152, in_place=True) == 8192
    assert rows_per_chunk(32_768, 151_936, in_place=True) == 3072
