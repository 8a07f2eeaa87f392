"""Muon and its clip on a CUDA device: torch's update, no wait for the device, the logits of fp32."""

import copy
import itertools

import pytest
import torch
from torch.optim import Muon

from neobert.config.schema import OptimizerConfig
from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.optim import build_optimizer
from neobert.optim.attention_logits import LogitMeter
from neobert.optim.qk_clip import build_qk_clip
from tests.optim.conftest import clipped_updates

SHAPE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 3}
CONFIG = OptimizerConfig(name="muonclip", lr=1e-3, weight_decay=0.1, qk_clip_threshold=5.0)
LENGTHS = [300, 7, 1024, 200, 500]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return NeoBERTLMHead(NeoBERTConfig(vocab_size=1024, attn_backend="auto", **SHAPE)).cuda()


def set_gradients(model, seed):
    draw = torch.Generator("cuda").manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, device="cuda", generator=draw)


def test_whole_matrices_are_updated_as_torch_muon_does(model):
    """In bf16 the order of sums differs between one matrix and many; the updates agree to its rounding."""
    weights = [block.ffn.w3.weight for block in model.model.transformer_encoder]
    before = [each.detach().clone() for each in weights]
    theirs = [torch.nn.Parameter(each.clone()) for each in before]
    muon = Muon(theirs, lr=CONFIG.lr, weight_decay=CONFIG.weight_decay, adjust_lr_fn="match_rms_adamw")
    ours = build_optimizer(CONFIG, model, backbone_from_model(model).layouts)
    for seed in range(3):
        set_gradients(model, seed)
        for mine, other in zip(weights, theirs, strict=True):
            other.grad = mine.grad.clone()
        ours.step()
        muon.step()
    for start, mine, other in zip(before, weights, theirs, strict=True):
        moved = (other - start).norm()
        assert (mine - other).norm() < 0.01 * moved


def test_a_step_waits_for_nothing_and_repeats_to_the_last_bit(model, waiting_is_an_error):
    twin = copy.deepcopy(model)
    for each in (model, twin):
        optimizer = build_optimizer(CONFIG, each, backbone_from_model(each).layouts)
        optimizer.found_inf = torch.zeros((), device="cuda")
        torch.cuda.synchronize()
        with waiting_is_an_error():
            for seed in range(2):
                set_gradients(each, seed)
                optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_bad_gradient_changes_nothing(model):
    optimizer = build_optimizer(CONFIG, model, backbone_from_model(model).layouts)
    set_gradients(model, 0)
    optimizer.step()
    before = copy.deepcopy(model)
    set_gradients(model, 1)
    model.model.transformer_encoder[0].qkv.weight.grad[0, 0] = torch.nan
    optimizer.found_inf = torch.ones((), device="cuda")
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_the_clip_measures_in_bf16_what_fp32_has_and_cuts_to_the_threshold(model):
    num_tokens = sum(LENGTHS)
    inputs = {
        "input_ids": torch.randint(5, 1024, (num_tokens,), device="cuda"),
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS]).cuda(),
        "cu_seqlens": torch.tensor([0, *itertools.accumulate(LENGTHS), num_tokens], dtype=torch.int32).cuda(),
        "attention_mask": None,
    }
    with torch.no_grad():
        for block in model.model.transformer_encoder:
            block.qkv.weight.mul_(4)
    expected = LogitMeter(model.model, 1024).measure(inputs)
    clip = build_qk_clip(CONFIG, model)
    with torch.autocast("cuda", torch.bfloat16):
        clip(inputs)
    torch.testing.assert_close(clip.highest, expected, rtol=0.03, atol=0.05)
    assert expected[0].max() > CONFIG.qk_clip_threshold
    first = LogitMeter(model.model, 1024).measure(inputs)[0]
    assert first.max().item() == pytest.approx(CONFIG.qk_clip_threshold, rel=0.03)


@pytest.mark.parametrize("limit", [0.5, 1e4])
def test_the_fused_update_clips_as_torch_does_before_it(limit):
    for one, other in clipped_updates("adamw", limit, "cuda"):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
