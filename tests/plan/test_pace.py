"""Time of a step beyond the products of the model: launches, and Muon's products."""

from typing import Any

import pytest

from neobert.config import from_dict
from neobert.plan import Plan, assumptions_for, build_plan
from neobert.plan.pace import evaluation_s, orthogonalization_flops

SMALL = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "intermediate_size": 2048}
BF16 = {"mixed_precision": "bf16", "per_device_train_batch_size": 64}


def plan_of(
    trainer: dict[str, Any], optimizer: str = "adamw", gpu: str | None = "H100", **sections: Any
) -> Plan:
    config = from_dict(
        {
            "model": SMALL,
            "dataset": {"max_seq_length": 256},
            "tokenizer": {"vocab_size": 8192},
            "optimizer": {"name": optimizer},
            "trainer": BF16 | trainer,
            **sections,
        }
    )
    return build_plan(config, assumptions_for(gpu, None, 0.25))


def test_a_small_model_on_a_gpu_waits_for_its_launches_unless_they_are_graphs():
    """500,000 tokens/s were measured on an H100, without graphs."""
    launched = plan_of({})
    assert launched.tokens_per_second.value == pytest.approx(500_000, rel=0.25)
    assert "time to launch the kernels of 12 blocks" in launched.step_time_s.reason
    assert plan_of({"gradient_accumulation_steps": 2}).step_time_s.value > 1.8 * launched.step_time_s.value
    graphs = plan_of({"cuda_graphs": True})
    assert graphs.step_time_s.value < 0.6 * launched.step_time_s.value
    assert "launches" not in plan_of({"per_device_train_batch_size": 512}).step_time_s.reason
    assert "launches" not in plan_of({}, gpu=None).step_time_s.reason


def test_muons_products_take_time_whatever_the_batch():
    large = {"per_device_train_batch_size": 512}
    adamw, muon = plan_of(large), plan_of(large, "muon")
    twice = plan_of(large | {"gradient_accumulation_steps": 2}, "muon")
    extra_s = muon.step_time_s.value - adamw.step_time_s.value
    assert extra_s > 0
    assert twice.step_time_s.value == pytest.approx(2 * adamw.step_time_s.value + extra_s)


def test_passes_that_are_repeated_take_time_and_are_not_useful():
    """Measured on a CPU, relative to one microbatch: two 1.28, four 1.33, masks 1.89, two with masks 2.25."""
    one = plan_of({}, gpu=None, task="contrastive")
    two, mixed = (
        plan_of({"gradient_accumulation_steps": 2}, gpu=None, task="contrastive", contrastive=section)
        for section in ({}, {"masked_lm_weight": 0.1})
    )
    assert two.flops_per_token.value == one.flops_per_token.value
    of_two, of_mixed = (each.step_time_s.value / 2 / one.step_time_s.value for each in (two, mixed))
    assert of_two == pytest.approx(4 / 3)
    assert two.mfu.value == pytest.approx(one.mfu.value * 3 / 4)
    head = mixed.flops_per_token.value / one.flops_per_token.value - 2
    assert 0 < head < 0.1
    assert of_mixed == pytest.approx(2 + 1 / 3 + head)
    config = from_dict({"task": "contrastive", "trainer": {"gradient_accumulation_steps": 2}})
    assert evaluation_s(config, 4.0, 1.0) == pytest.approx(1.0)  # it repeats nothing


@pytest.mark.parametrize("split", ["projections", "heads"])
def test_the_products_of_an_iteration_are_counted(split):
    config = from_dict({"model": SMALL, "optimizer": {"name": "muon", "muon_split": split}})
    shape = build_plan(config, assumptions_for("H100", None, 0.25)).shape
    heads = 8 if split == "heads" else 1
    matrices = [(512 // heads, 512)] * (3 * heads) + [(512, 512)] + [(512, 1368)] * 3
    each = sum(2 * r * r * c + 2 * r**3 + 2 * r * r * c for r, c in matrices)
    assert orthogonalization_flops(config, shape) == 5 * 12 * each
