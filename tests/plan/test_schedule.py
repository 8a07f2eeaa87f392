"""Learning rate and masking rate at their anchors, and what holds between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schedules import (
    masking_rates,
    microbatches_at,
    microbatches_before,
    steps_for_microbatches,
)
from neobert.config.schema import DataCollatorConfig, SchedulerConfig, TrainerConfig
from neobert.plan import build_schedule, learning_rate_at, multiplier_at

PEAK = 6e-4


def at(step, max_steps=1000, **scheduler):
    return learning_rate_at(step, PEAK, build_schedule(SchedulerConfig(**scheduler), max_steps)) / PEAK


WARM = {"warmup_steps": 100, "decay_steps": 400, "final_lr_ratio": 0.1}


def test_the_shapes_differ_between_their_anchors():
    assert at(700, name="cosine", **WARM) == pytest.approx(0.1 + 0.9 * (0.5 + 0.5 * 2**-0.5))
    assert at(700, name="linear", **WARM) == pytest.approx(0.1 + 0.9 * 0.75)
    assert at(900, name="sqrt", **WARM) == pytest.approx(0.1 + 0.9 * 0.5)
    assert at(700, name="1-sqrt", **WARM) == pytest.approx(0.1 + 0.9 * 0.5)


@pytest.mark.parametrize("name", ["cosine", "linear", "sqrt", "1-sqrt"])
def test_every_shape_starts_at_the_peak_and_ends_at_the_floor(name):
    found = [at(step, name=name, **WARM) for step in (0, 50, 100, 600, 1000, 5000)]
    assert found == pytest.approx([1e-4, 0.50005, 1.0, 1.0, 0.1, 0.1])


def test_without_warmup_the_first_step_is_at_the_peak():
    assert at(0) == 1.0


def test_without_decay_steps_the_decay_follows_the_warmup():
    schedule = build_schedule(SchedulerConfig(warmup_steps=100), 1000)
    assert (schedule.warmup_steps, schedule.decay_start, schedule.decay_end) == (100, 100, 1000)


def test_percentages_beat_steps():
    scheduler = SchedulerConfig(warmup_steps=7, warmup_percent=10.0, decay_steps=7, decay_percent=25.0)
    schedule = build_schedule(scheduler, 1000)
    assert (schedule.warmup_steps, schedule.decay_start) == (100, 750)
    assert build_schedule(SchedulerConfig(warmup_steps=7, warmup_percent=0.0), 1000).warmup_steps == 0


def test_total_steps_move_the_floor_and_what_percentages_are_of():
    schedule = build_schedule(SchedulerConfig(total_steps=500, warmup_percent=10.0), 1000)
    assert (schedule.warmup_steps, schedule.decay_end) == (50, 500)
    assert multiplier_at(700, schedule) == 0.1


def test_a_decay_of_all_steps_needs_no_plateau():
    schedule = build_schedule(SchedulerConfig(decay_percent=100.0), 1000)
    assert schedule.decay_start == 0
    assert multiplier_at(0, schedule) == 1.0


@given(
    warmup=st.integers(0, 400),
    decay=st.integers(1, 600),
    floor=st.floats(0, 1),
    name=st.sampled_from(["cosine", "linear", "sqrt", "1-sqrt"]),
    step=st.integers(0, 1200),
)
def test_the_rate_rises_then_falls_and_stays_within_its_bounds(warmup, decay, floor, name, step):
    scheduler = SchedulerConfig(name=name, warmup_steps=warmup, decay_steps=decay, final_lr_ratio=floor)
    schedule = build_schedule(scheduler, 1000)
    now, after = multiplier_at(step, schedule), multiplier_at(step + 1, schedule)
    assert min(1e-4, floor) <= now <= 1.0
    assert after >= now if step + 1 <= warmup else after <= now + 1e-12


def test_evaluations_mask_as_training_does_unless_they_have_a_rate_of_their_own():
    assert masking_rates(DataCollatorConfig(mlm_probability=0.17)) == (0.17, 0.17)
    assert masking_rates(DataCollatorConfig(mlm_probability=0.3, mlm_probability_eval=0.15)) == (0.3, 0.15)


@pytest.mark.parametrize(
    ("accumulation", "warmup", "expected"),
    [
        (8, 6, [1, 1, 2, 2, 4, 4, 8, 8]),
        (6, 3, [1, 2, 4, 6, 6]),
        (2, 3, [1, 1, 1, 2]),
        (1, 3, [1, 1, 1, 1]),
        (8, 2, [1, 2, 8]),
        (5, 0, [5, 5]),
    ],
)
def test_the_batch_grows_by_doubling(accumulation, warmup, expected):
    trainer = TrainerConfig(gradient_accumulation_steps=accumulation, batch_size_warmup_steps=warmup)
    assert [microbatches_at(step, trainer) for step in range(len(expected))] == expected


@given(st.integers(1, 70), st.integers(0, 60), st.integers(0, 90), st.floats(0, 900))
def test_microbatches_are_counted_as_they_are_used(accumulation, warmup, steps, wanted):
    trainer = TrainerConfig(gradient_accumulation_steps=accumulation, batch_size_warmup_steps=warmup)
    each = [microbatches_at(step, trainer) for step in range(steps)]
    assert each == sorted(each)
    assert microbatches_before(steps, trainer) == sum(each)
    enough = steps_for_microbatches(wanted, trainer)
    assert microbatches_before(enough, trainer) >= wanted
    assert enough == 0 or microbatches_before(enough - 1, trainer) < wanted
