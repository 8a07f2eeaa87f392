"""Evaluations in the plan: counted as the trainer makes them, timed where their size is known."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schema import DatasetConfig, RunConfig, TrainerConfig
from neobert.plan import build_plan
from neobert.plan.hardware import assumptions_for
from neobert.plan.pace import num_evaluations, num_evaluations_after

pytest.importorskip("torch")

from neobert.training.loop.hooks import Hook

A100 = assumptions_for("A100", None, 0.35)
RUN = RunConfig()


def plan_with(**more: object):
    trainer = {"max_steps": 1000, "eval_steps": 100} | {
        key: more.pop(key) for key in ("eval_steps", "eval_max_batches") if key in more
    }
    return build_plan(
        replace(RUN, dataset=DatasetConfig(**more), trainer=replace(RUN.trainer, **trainer)), A100
    )


@given(st.integers(1, 200), st.integers(0, 250))
def test_as_many_are_counted_as_the_trainer_makes(max_steps, every):
    hook = Hook(name="evaluation", act=lambda _: None, every=every, at_start=True)
    made = sum(hook.is_due(step, max_steps) for step in range(max_steps + 1))
    trainer = TrainerConfig(max_steps=max_steps, eval_steps=every)
    assert num_evaluations(trainer) == made
    left = [num_evaluations_after(step, max_steps, every) for step in range(max_steps + 1)]
    assert left == [
        sum(hook.is_due(later, max_steps) for later in range(step + 1, max_steps + 1))
        for step in range(max_steps + 1)
    ]


def test_the_time_to_the_end_counts_evaluations():
    plan = plan_with(eval_samples=10_000)
    each_s = 10_000 * 217 / plan.tokens_per_second.value / 3
    assert plan.eta_s.value == pytest.approx(1000 * plan.step_time_s.value + 11 * each_s)
    assert f"+ 11 evaluations x {each_s:.3g} s" in plan.eta_s.reason


@pytest.mark.parametrize("eval_steps", [0, 1000])
def test_there_is_one_before_the_first_step_and_one_at_the_end(eval_steps):
    assert "+ 2 evaluations" in plan_with(eval_samples=10_000, eval_steps=eval_steps).eta_s.reason


@pytest.mark.parametrize("split", [{"eval_split": "test", "eval_samples": 5}, {"validation_split": 0.1}, {}])
def test_a_size_that_nobody_knows_is_left_out_and_that_is_said(split):
    plan = plan_with(**split)
    assert plan.eta_s.value == pytest.approx(1000 * plan.step_time_s.value)
    assert "evaluations of unknown size (not included)" in plan.eta_s.reason


def test_a_limit_of_batches_bounds_them():
    plan = plan_with(eval_split="test", eval_max_batches=2)
    tokens = 2 * RUN.trainer.per_device_eval_batch_size * plan.max_length.value * plan.fill.value
    evaluations_s = 11 * tokens / plan.tokens_per_second.value / 3
    assert plan.eta_s.value == pytest.approx(1000 * plan.step_time_s.value + evaluations_s)
