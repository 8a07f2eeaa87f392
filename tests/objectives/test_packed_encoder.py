"""The runner of the kernels against the model's own forward, with plain formulas in the kernels' places."""

import pytest
import torch
import torch.nn.functional as F

from neobert.families.neobert.build import backbone_from_model
from neobert.kernel_table import OWN_KERNELS
from neobert.kernels import reference
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.objectives import packed_encoder
from neobert.objectives.packed_encoder import KernelObjective
from neobert.objectives.step_kernels import StepKernels
from neobert.objectives.tokens import TokenObjective
from tests.objectives.test_tokens import loss_and_gradients

VOCAB, LENGTHS, HEADS = 61, (7, 1, 5, 11), 2


def test_each_kernel_that_replaces_blocks_has_its_steps():
    assert {*OWN_KERNELS} == packed_encoder.BLOCK_STEPS.keys(), "BLOCK_STEPS lacks a row of the kernel table"


def build(tied: bool = False) -> NeoBERTLMHead:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 48}
    config = NeoBERTConfig(vocab_size=VOCAB, tie_word_embeddings=tied, embedding_init_range=0.5, **shape)
    model = NeoBERTLMHead(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def batch(chance=0.4):
    draw = torch.Generator().manual_seed(0)
    total = sum(LENGTHS)
    ids = torch.randint(1, VOCAB, (total,), generator=draw)
    is_target = torch.rand(total, generator=draw) < chance
    bounds = [0, *torch.tensor(LENGTHS).cumsum(0).tolist(), total, total]
    return {
        "num_targets": int(is_target.sum()),
        "labels": torch.where(is_target, ids, -100),
        "input_ids": ids,
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS]),
        "attention_mask": None,
        "cu_seqlens": torch.tensor(bounds, dtype=torch.int32),
        "max_seqlen": max(LENGTHS),
    }


@pytest.fixture(autouse=True)
def _plain_formulas(monkeypatch):
    """Put formulas in fp32 where the programs for a GPU are."""
    positions, cu, theta = batch()["position_ids"], batch()["cu_seqlens"], 10_000.0

    def attend(x, weight, rotary, segments, *rest):
        return reference.attention(x @ weight.t(), positions, cu, rest[-1], theta)

    def block(x, rstd, weights, rotary, segments, *, num_heads, eps, max_seqlen):
        return reference.block(x, weights, positions, cu, num_heads, theta, eps), rstd

    def add_norm(x, branch, weight, eps):
        return x + branch, reference.rms_norm(x + branch, weight, eps)

    def loss(hidden, weight, bias, labels, z_loss):
        logits = F.linear(hidden, weight, bias)
        squares = (logits.logsumexp(-1).square() * (labels >= 0)).sum()
        return F.cross_entropy(logits, labels, reduction="sum") + z_loss * squares

    plain = {
        "COMPUTE": torch.float32,
        "rotary_attention": attend,
        "encoder_block": block,
        "rms_norm": reference.rms_norm,
        "add_rms_norm": add_norm,
        "feed_forward": lambda x, w12, w3: reference.swiglu(x @ w12.t()) @ w3.t(),
        "linear_cross_entropy": loss,
    }
    for name, value in plain.items():
        monkeypatch.setattr(packed_encoder, name, value)
    monkeypatch.setattr(packed_encoder.flash4, "rotary_attention", attend)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("capacity", [4, 24])
@pytest.mark.parametrize("attention", ["triton_packed", "flash_attn_4"])
@pytest.mark.parametrize("name", ["triton", "fused"])
def test_every_parameter_is_in_its_place(name, attention, capacity, tied):
    model, inputs = build(tied), batch()
    kernels = StepKernels(name, attention, "sdpa", "")
    wanted = loss_and_gradients(TokenObjective(backbone_from_model(model), True, z_loss=0.05), inputs)
    loss, gradients = loss_and_gradients(
        KernelObjective(backbone_from_model(model), kernels, capacity, z_loss=0.05), inputs
    )
    assert loss.item() == pytest.approx(wanted[0].item(), rel=1e-5)
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[1][parameter], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["triton", "fused"])
def test_evaluation_scores_what_is_trained(name):
    model, inputs = build(), batch()
    objective = KernelObjective(
        backbone_from_model(model), StepKernels(name, "triton_packed", "sdpa", ""), 24
    )
    wanted = TokenObjective(backbone_from_model(model), True).evaluate(**inputs)
    score = objective.evaluate(**inputs)
    assert score.loss_sum.item() == pytest.approx(wanted.loss_sum.item(), rel=1e-5)
    assert score.num_correct == wanted.num_correct


def test_without_targets_the_loss_is_zero():
    objective = KernelObjective(
        backbone_from_model(build()), StepKernels("triton", "triton_packed", "sdpa", ""), 8
    )
    loss, gradients = loss_and_gradients(objective, batch(chance=0.0))
    assert loss.item() == 0.0
    assert not any(gradient.any() for gradient in gradients.values())
