"""Marks of progress: what is learned from the time between them, and what is not."""

from __future__ import annotations

import time

import pytest

from neobert.runfiles.phases import COMPILE, DATA_WAIT, LEADS, SAVE, STEP, UNSEEN_SAVE_S, Pulse


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pulse(clock):
    return Pulse(clock)


def spend(pulse, clock, phase, took_s):
    pulse.enter(phase)
    clock.now_s += took_s


def test_the_longest_of_a_phase_is_what_it_has_shown(pulse, clock):
    for took_s in (1.0, 4.0, 2.0):
        spend(pulse, clock, STEP, took_s)
        spend(pulse, clock, DATA_WAIT, took_s / 8)
    pulse.enter(STEP)
    assert pulse.longest_s == {STEP: 4.0, DATA_WAIT: 0.5}


def test_the_first_steps_and_the_start_teach_nothing(pulse, clock):
    clock.now_s += 50
    spend(pulse, clock, COMPILE, 90.0)
    spend(pulse, clock, SAVE, 30.0)
    pulse.enter(STEP)
    assert pulse.longest_s == {}


def test_a_mark_says_where_when_and_after_how_many_steps(pulse):
    assert pulse.last.step is None
    before_s = time.time()
    pulse.enter(DATA_WAIT, 7)
    pulse.enter(STEP)
    assert pulse.last[:2] == (STEP, 7)
    assert before_s <= pulse.last.at_s <= time.time()


def test_going_on_is_progress_in_the_same_phase(pulse):
    pulse.enter(DATA_WAIT, 3)
    first = pulse.last
    time.sleep(0.002)
    pulse.go_on()
    assert pulse.last[:2] == first[:2]
    assert pulse.last.at_s > first.at_s


def test_time_for_three_saves_is_kept(pulse):
    assert pulse.stopping_s() == LEADS * UNSEEN_SAVE_S
    pulse.learn(SAVE, 2.0)
    pulse.learn(STEP, 0.5)
    assert pulse.stopping_s() == LEADS * 2.5
