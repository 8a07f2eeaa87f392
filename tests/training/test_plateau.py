"""A loss that has stopped falling is named once a stretch; one that falls as losses do is not."""

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.training.guards.health import PlateauWatch
from neobert.training.loop.hooks import StepReport
from neobert.training.state.train_state import TrainState

EVERY = 25


def warned_at(loss_of, last_step, first_step=0, every=EVERY):
    watch = PlateauWatch(every)
    steps = range(first_step + every, last_step + 1, every)
    return [step for step in steps if watch.judge(step, loss_of(step))]


def test_a_flat_loss_is_named_after_each_stretch_and_not_before_1000_steps():
    seen = warned_at(lambda _: 4.0, 12_000)
    assert seen[0] == EVERY + 1000
    gaps = [after - before for before, after in pairwise(seen)]
    assert gaps == sorted(gaps), "a stretch is never shorter than the one before"
    assert gaps[-1] == 0.25 * seen[-2] // EVERY * EVERY + EVERY


@pytest.mark.parametrize("first_step", [0, 5_000, 200_000])
def test_a_rising_loss_is_flat(first_step):
    length = max(1000, 0.25 * (first_step + EVERY))
    seen = warned_at(lambda step: 2 + step / 1e6, int(first_step + 2 * length), first_step)
    assert seen[0] - first_step == pytest.approx(length, abs=2 * EVERY)


@given(exponent=st.floats(0.05, 0.8), floor=st.floats(0, 1.5), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_loss_that_falls_as_scaling_laws_say_is_none(exponent, floor, seed):
    noise = random.Random(seed)

    def loss_of(step):
        return floor * step**-0.03 + 8 * step**-exponent + noise.gauss(0, 0.002)

    assert warned_at(loss_of, 60_000) == []


def test_noise_alone_names_hardly_anything():
    """A slow fall is drowned in noise: two standard errors are left to it."""
    alarms = 0
    for seed in range(40):
        noise = random.Random(seed)
        alarms += len(warned_at(lambda step: 5 * step**-0.05 + noise.gauss(0, 0.5), 10_000))  # noqa: B023
    assert alarms <= 40 * 8 * 0.05


def test_a_noisy_plateau_is_found():
    noise = random.Random(1)
    assert len(warned_at(lambda step: max(2.5, 12 * step**-0.2) + noise.gauss(0, 0.005), 60_000)) >= 4


def test_lines_far_apart_need_a_longer_stretch():
    assert warned_at(lambda _: 3.0, 9_000, every=500) == [8_500]


def test_lines_without_a_target_say_nothing():
    assert warned_at(lambda _: None, 5_000) == []


def test_the_warning_is_logged_and_counted(caplog):
    progress = SimpleNamespace(step=0)
    trainer = SimpleNamespace(state=TrainState(progress=progress), progress=progress)
    watch = PlateauWatch(EVERY)
    for step in range(EVERY, 1100, EVERY):
        trainer.progress.step = step
        watch(trainer, StepReport(step, {"train/loss": 4.0}))
    assert trainer.state.warnings == {"loss_plateau": 1}
    assert "step 1025: loss plateau over steps 25 to 1,025: mean loss 4.0000" in caplog.text
