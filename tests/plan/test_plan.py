"""Arithmetic of the plan, against figures worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schema import (
    DataCollatorConfig,
    DatasetConfig,
    DistributedConfig,
    GuardConfig,
    ModelConfig,
    RunConfig,
    TokenizerConfig,
    TrainerConfig,
)
from neobert.families.table import model_shape
from neobert.plan import Measured, assumptions_for, build_plan, round_up
from neobert.plan.memory import logits_bytes

A100 = assumptions_for("A100", 80, 0.35)
RUN = RunConfig(
    trainer=TrainerConfig(
        max_steps=50_000,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=8,
        save_steps=250,
        torch_compile=True,
    ),
    distributed=DistributedConfig(nproc_per_node=2, nnodes=1),
)


def plan_with(run=RUN, assumptions=A100, measured=None, **sections):
    return build_plan(replace(run, **sections), assumptions, measured)


def trainer(**changes):
    return {"trainer": replace(RUN.trainer, **changes)}


def test_every_value_has_a_reason():
    derived = dict(plan_with().derived_values())
    assert len(derived) >= 35
    assert [name for name, value in derived.items() if not value.reason] == []


def test_batch():
    plan = plan_with()
    assert plan.world_size.value == 2
    assert plan.tokens_per_microbatch.value == 16 * 1024
    assert plan.global_batch_size.value == 256
    assert plan.tokens_per_step.value == 262_144
    assert plan.total_tokens.value == round(262_144 * 50_000 * 0.99)
    assert plan.tokens_per_parameter.value == plan.total_tokens.value / plan.num_parameters.value


def test_padded_rows_are_not_counted_as_text():
    padded = plan_with(datacollator=DataCollatorConfig(pack_sequences=False))
    assert padded.tokens_per_step.value == plan_with().tokens_per_step.value
    assert padded.total_tokens.value < plan_with().total_tokens.value / 4
    assert padded.flops_per_token.value > plan_with().flops_per_token.value


def test_flops_are_those_of_the_three_terms():
    plan = plan_with()
    products = 6 * 198_180_864
    decoder = 6 * 30_592 * 768 * 0.2
    attention = 12 * 28 * 768 * 217
    assert plan.flops_per_token.value == pytest.approx(products + decoder + attention)
    everywhere = plan_with(**trainer(masked_logits_only_loss=False))
    assert everywhere.flops_per_token.value == pytest.approx(products + 5 * decoder + attention)


def test_step_time_throughput_and_eta_follow_from_the_peak():
    plan = plan_with()
    expected = plan.flops_per_token.value * 262_144 / (0.35 * 312e12 * 2)
    assert plan.step_time_s.value == pytest.approx(expected)
    assert plan.mfu.value == pytest.approx(0.35 * 0.99)
    assert plan.eta_s.value == pytest.approx(50_000 * expected)
    assert plan.tokens_per_second.value == pytest.approx(262_144 * 0.99 / expected)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(
    ("precision", "tf32", "peak"), [("bf16", True, 312e12), ("no", True, 156e12), ("fp32", False, 19.5e12)]
)
def test_the_mfu_is_that_which_the_trainer_measures(is_packed, precision, tf32, peak):
    """It credits no padding, and divides by the peak of the precision that the run computes in."""
    plan = plan_with(
        datacollator=DataCollatorConfig(pack_sequences=is_packed),
        **trainer(mixed_precision=precision, tf32=tf32),
    )
    useful = 6 * 198_180_864 + 6 * 30_592 * 768 * 0.2 + 12 * 28 * 768 * 217
    assert plan.mfu.value == pytest.approx(plan.tokens_per_second.value * useful / (2 * peak))
    assert plan.mfu.value < 0.1 or is_packed


def test_fp32_and_narrow_models_have_a_lower_peak():
    assert plan_with(**trainer(mixed_precision="fp32")).attainable_flops.value == 156e12
    assert plan_with(**trainer(mixed_precision="no", tf32=False)).attainable_flops.value == 19.5e12
    assert "waits" not in plan_with().attainable_flops.reason
    narrow = plan_with(model=ModelConfig(hidden_size=102, num_attention_heads=2))
    assert narrow.attainable_flops.value == pytest.approx(312e12 * 102 / (4 / 3 * 312 / 2.04))
    assert "are memory-bound" in narrow.attainable_flops.reason


def test_a_measurement_replaces_the_estimate_and_is_named():
    measured = Measured(step_time_s=655.36, memory_mib=21_504.0, source="rehearsal of 20 steps")
    plan = plan_with(measured=measured)
    assert plan.step_time_s.value == 655.36
    assert plan.tokens_per_second.value == pytest.approx(400 * 0.99)
    assert plan.mfu.value < 0.002
    assert plan.minutes_at_risk.value == pytest.approx(250 * 655.36 / 60)
    assert plan.memory_mib.value == 21_504
    for value in (plan.step_time_s, plan.minutes_at_risk, plan.eta_s, plan.memory_mib):
        assert "rehearsal of 20 steps" in value.reason


@pytest.mark.parametrize(
    ("save_steps", "interval", "num_saves"),
    [
        (0, 50_000, 1),
        (50_001, 50_000, 1),
        (50_000, 50_000, 1),
        (49_999, 49_999, 2),
        (250, 250, 200),
        (300, 300, 167),
    ],
)
def test_cadence(save_steps, interval, num_saves):
    plan = plan_with(**trainer(save_steps=save_steps))
    assert plan.save_interval_steps.value == interval
    assert plan.num_saves.value == num_saves
    assert plan.minutes_at_risk.value == pytest.approx(interval * plan.step_time_s.value / 60)


def test_checkpoints_hold_weights_and_two_moments():
    plan = plan_with(**trainer(save_total_limit=3))
    assert plan.checkpoint_mib.value == pytest.approx(245_244_544 * 12 / 2**20, rel=0.01)
    assert plan.checkpoint_tree_mib.value == pytest.approx(6 * plan.checkpoint_mib.value * 1.2)
    kept_all = plan_with(**trainer(save_total_limit=0, save_steps=10_000))
    assert kept_all.checkpoint_tree_mib.value == pytest.approx((5 + 1 + 1) * plan.checkpoint_mib.value * 1.2)


def test_what_is_kept_besides_the_newest_takes_room_too():
    one = plan_with(**trainer(save_total_limit=1, save_steps=500))
    assert one.checkpoint_tree_mib.value == pytest.approx((2 + 2 + 1) * one.checkpoint_mib.value * 1.2)
    more = {"save_keep_every": 10_000, "metric_for_best_model": "eval/loss"}
    kept = plan_with(**trainer(save_total_limit=3, save_steps=500, **more))
    assert kept.checkpoint_tree_mib.value == pytest.approx(
        (3 + 1 + 5 + 2 + 1) * kept.checkpoint_mib.value * 1.2
    )


def test_memory_is_the_sum_of_its_parts():
    plan = plan_with()
    state = plan.weights_mib.value + plan.gradients_mib.value + plan.optimizer_mib.value
    assert state == pytest.approx(245_244_544 * (4 + 2 + 4 + 8) / 2**20)
    rest = plan.activations_mib.value + plan.logits_mib.value + plan.runtime_mib.value
    assert plan.memory_mib.value == pytest.approx(state + rest)


@pytest.mark.parametrize(
    ("kernels", "accumulation", "gradients"), [("triton", 1, 2), ("triton", 2, 4), ("fused", 1, 4)]
)
def test_parts_are_kept_by_their_rank(kernels, accumulation, gradients):
    """Two ranks: half of weights and moments between steps, the whole of the weights within one."""
    plan = plan_with(
        model=ModelConfig(kernel_backend=kernels),
        distributed=DistributedConfig(nproc_per_node=2, mode="fsdp2"),
        **trainer(gradient_accumulation_steps=accumulation),
    )
    assert plan.weights_mib.value == pytest.approx(245_244_544 * (2 + 4 + 2) / 2**20)
    block = (plan.num_linear_parameters.value + (2 * 28 + 1) * 768) / 28
    exchange = 12 * block if gradients == 2 else 0  # a gradient and two messages
    assert plan.gradients_mib.value == pytest.approx((245_244_544 * gradients + exchange) / 2**20)
    assert plan.optimizer_mib.value == pytest.approx(245_244_544 * 4 / 2**20)


def test_what_is_kept_in_fp32():
    plan = plan_with(**trainer(mixed_precision="fp32"))
    assert plan.weights_mib.value == pytest.approx(245_244_544 * 4 / 2**20)
    assert plan.logits_mib.value == pytest.approx(3277 * 30_592 * (4 + 4 + 4) / 2**20)


def test_gelu_has_no_gate_to_keep():
    gelu, swiglu = (
        plan_with(
            model=ModelConfig(hidden_act=act, intermediate_size=width, kernel_backend="torch")
        ).activations_mib.value
        for act, width in (("gelu", 2048), ("swiglu", 3072))
    )
    assert swiglu - gelu == pytest.approx(28 * 16_384 * 2 * 2048 / 2**20)


def test_checkpointing_trades_memory():
    torchs = {"model": ModelConfig(kernel_backend="torch")}
    whole = plan_with(**torchs).activations_mib.value
    some = plan_with(
        **trainer(gradient_checkpointing=True, gradient_checkpointing_every_n=2)
    ).activations_mib.value
    all_blocks = plan_with(**trainer(gradient_checkpointing=True)).activations_mib.value
    assert all_blocks < some < whole
    assert plan_with(**trainer(torch_compile=False), **torchs).activations_mib.value > whole
    assert plan_with(**trainer(mixed_precision="no")).activations_mib.value > 1.5 * whole


def test_own_kernels_keep_less_and_score_in_chunks():
    plans = {name: plan_with(model=ModelConfig(kernel_backend=name)) for name in ("fused", "triton", "torch")}
    activations = {name: plan.activations_mib.value for name, plan in plans.items()}
    assert activations["fused"] < activations["triton"] < activations["torch"]
    assert activations["fused"] == 28 * 16_384 * (2 * (6 * 768 + 3 * 2048) + 4 * 14) / 2**20
    assert plans["triton"].logits_mib.value == 30_592 * (3277 * 2 + 768 * 4) / 2**20
    assert plans["torch"].logits_mib.value == 3277 * 30_592 * 10 / 2**20


def test_many_logits_are_counted_in_chunks():
    large = plan_with(model=ModelConfig(kernel_backend="torch", vocab_size=151_936))
    assert large.logits_mib.value == 151_936 * (3072 * 2 + 768 * 4) / 2**20
    assert "3,072 at a time in the compute type" in large.logits_mib.reason


def test_the_gradient_of_a_frozen_head_is_not_counted():
    shape = model_shape(RUN, 151_936)
    shapes = (shape, replace(shape, trains_head=False))
    trained, frozen = (logits_bytes(RUN, each, 16_384, "torch", 2, is_cuda=True) for each in shapes)
    assert trained - frozen == 151_936 * 768 * 4


@pytest.mark.parametrize(
    ("gpu", "changes", "kernels", "attention", "output"),
    [
        ("H200", {}, "fused", "triton_packed", "with triton and quack-kernels"),
        ("A100", {}, "triton", "triton_packed", "fused needs compute capability 9.x"),
        ("H200", {"dataset": DatasetConfig(max_seq_length=4096)}, "fused", "flash_attn_4", "auto on H200"),
        (
            "H200",
            {"datacollator": DataCollatorConfig(pack_sequences=False)},
            "torch",
            "sdpa",
            "pack_sequences: true",
        ),
        ("H200", {"model": ModelConfig(kernel_backend="torch")}, "torch", "torch_varlen", "as given"),
        (
            "H200",
            {"model": ModelConfig(kernel_backend="torch"), "dataset": DatasetConfig(max_seq_length=64)},
            "torch",
            "triton_packed",
            "as given",
        ),
        ("H200", {"model": ModelConfig(attn_backend="flex")}, "torch", "flex", "attn_backend: auto"),
        (None, {}, "torch", "sdpa", "needs CUDA"),
    ],
)
def test_the_kernels_are_named_with_a_reason(gpu, changes, kernels, attention, output):
    plan = plan_with(assumptions=assumptions_for(gpu, None, 0.4), **changes)
    assert (plan.kernels.value, plan.attention.value) == (kernels, attention)
    assert output in plan.kernels.reason


@pytest.mark.parametrize(
    ("model", "tokenizer", "expected"),
    [
        (30_522, None, 30_522),
        (None, 4096, 4096),
        (None, 4097, 4224),
        (None, None, 30_592),
        (8192, 4096, 8192),
    ],
)
def test_vocabulary(model, tokenizer, expected):
    plan = plan_with(model=ModelConfig(vocab_size=model), tokenizer=TokenizerConfig(vocab_size=tokenizer))
    assert plan.vocab_size.value == expected


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_round_up(value, multiple):
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert 0 <= rounded - value < multiple


def test_the_longest_sequence_is_the_collators_or_the_data_sets():
    dataset = DatasetConfig(max_seq_length=512)
    assert plan_with(dataset=dataset).max_length.value == 512
    assert plan_with(dataset=dataset, datacollator=DataCollatorConfig(max_length=256)).max_length.value == 256


def test_cost_needs_a_price():
    assert plan_with().cost.value is None
    priced = plan_with(guard=GuardConfig(price_per_gpu_hour=2.0))
    assert priced.cost.value == pytest.approx(2.0 * 2 * priced.eta_s.value / 3600)
    assert priced.cost.reason == f"{priced.eta_s.value / 3600:.3g} h x 2 GPUs x 2 per GPU-hour"


def test_learning_rates_are_those_of_first_middle_and_last_step():
    plan = plan_with(scheduler=replace(RUN.scheduler, warmup_steps=1000))
    assert plan.learning_rate_first.value == pytest.approx(6e-8)
    assert 6e-5 < plan.learning_rate_last.value < plan.learning_rate_middle.value < 6e-4
    assert (plan.warmup_steps.value, plan.decay_start.value, plan.decay_end.value) == (1000, 1000, 50_000)


@given(
    rows=st.integers(1, 512),
    accumulation=st.integers(1, 64),
    processes=st.integers(1, 8),
    max_steps=st.integers(1, 10**6),
    save_steps=st.integers(0, 10**6),
)
def test_plans_are_coherent(rows, accumulation, processes, max_steps, save_steps):
    config = replace(
        RUN,
        trainer=TrainerConfig(
            max_steps=max_steps,
            save_steps=save_steps,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulation,
        ),
        distributed=DistributedConfig(nproc_per_node=processes),
    )
    plan = build_plan(config, A100)
    assert plan.tokens_per_step.value == plan.global_batch_size.value * 1024
    assert plan.num_saves.value * plan.save_interval_steps.value >= max_steps
    assert plan.minutes_at_risk.value * 60 <= plan.eta_s.value * (1 + 1e-9)
    assert build_plan(config, A100) == plan


def test_the_plan_counts_the_masking_rate_of_training():
    def planned(**rates):
        return plan_with(datacollator=DataCollatorConfig(**rates))

    assert planned(mlm_probability=0.4).flops_per_token.value > planned().flops_per_token.value
    assert planned(mlm_probability=0.4).logits_mib.value > planned().logits_mib.value
    evaluated = planned(mlm_probability_eval=0.9)
    assert evaluated.flops_per_token == planned().flops_per_token


def test_a_batch_size_warm_up_reads_less_and_takes_less_time():
    """Of 8 microbatches: 100 steps of each of 1, 2 and 4 are 87.5 whole ones."""
    plain, warmed = plan_with(), plan_with(**trainer(batch_size_warmup_steps=300))
    whole = 50_000 - 300 + 87.5
    assert warmed.total_tokens.value == round(262_144 * whole * 0.99)
    assert warmed.tokens_per_step == plain.tokens_per_step
    evaluations_s = plain.eta_s.value - plain.step_time_s.value * 50_000
    assert warmed.eta_s.value - evaluations_s == pytest.approx(plain.step_time_s.value * whole)
    assert "less the batch-size warm-up" in warmed.total_tokens.reason
    assert "x 99.6% for the batch-size warm-up" in warmed.eta_s.reason
