"""Marks of progress: what is learned from the time between them, and what is not."""

import time

import pytest

from neobert.runfiles.phases import COMPILE, DATA_WAIT, LEADS, SAVE, STEP, UNSEEN_SAVE_S, PhaseTracker


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def phases(clock):
    return PhaseTracker(clock)


def spend(phases, clock, phase, took_s):
    phases.enter(phase)
    clock.now_s += took_s


def test_the_longest_of_a_phase_is_what_it_has_shown(phases, clock):
    for took_s in (1.0, 4.0, 2.0):
        spend(phases, clock, STEP, took_s)
        spend(phases, clock, DATA_WAIT, took_s / 8)
    phases.enter(STEP)
    assert phases.longest_s == {STEP: 4.0, DATA_WAIT: 0.5}


def test_the_first_steps_and_the_start_teach_nothing(phases, clock):
    clock.now_s += 50
    spend(phases, clock, COMPILE, 90.0)
    spend(phases, clock, SAVE, 30.0)
    phases.enter(STEP)
    assert phases.longest_s == {}


def test_a_mark_says_where_when_and_after_how_many_steps(phases):
    assert phases.last.step is None
    before_s = time.time()
    phases.enter(DATA_WAIT, 7)
    phases.enter(STEP)
    assert phases.last[:2] == (STEP, 7)
    assert before_s <= phases.last.at_s <= time.time()


def test_going_on_is_progress_in_the_same_phase(phases):
    phases.enter(DATA_WAIT, 3)
    first = phases.last
    time.sleep(0.002)
    phases.tick()
    assert phases.last[:2] == first[:2]
    assert phases.last.at_s > first.at_s


def test_time_for_three_saves_is_kept(phases):
    assert phases.stopping_s() == LEADS * UNSEEN_SAVE_S
    phases.record_duration(SAVE, 2.0)
    phases.record_duration(STEP, 0.5)
    assert phases.stopping_s() == LEADS * 2.5
