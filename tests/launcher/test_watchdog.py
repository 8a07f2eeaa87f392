"""What is a stall and whose: by the heartbeats alone, on a clock that the test turns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir.stalls import AwakeClock, Watchdog
from neobert.config.schema import WatchdogConfig

LIMITS = WatchdogConfig(
    start_limit_s=500, compile_limit_s=400, step_limit_s=100, data_wait_limit_s=80, evaluation_limit_s=60,
    save_limit_s=300, learned_floor_s=20, heartbeat_interval_s=5,
)  # fmt: skip
INTERVAL_S = LIMITS.heartbeat_interval_s


class Ranks:
    """Heartbeats of some ranks: one is written whenever it is asked for, unless the rank is mute."""

    def __init__(self, count: int) -> None:
        self.newest_heartbeats: dict[int, dict[str, Any]] = {rank: {} for rank in range(count)}
        self.seq = 0

    def at(self, rank: int, phase: str, step: int | None, progress: int, **more: Any) -> None:
        reported = {
            "phase": phase,
            "step": step,
            "last_progress_step": step,
            "last_progress_ts_utc": f"{progress:06}",
        }
        self.newest_heartbeats[rank] = {**reported, **more}

    def read(self, mute: tuple[int, ...] = ()) -> dict[int, dict[str, Any]]:
        self.seq += 1
        for rank, beat in self.newest_heartbeats.items():
            if beat and rank not in mute:
                self.newest_heartbeats[rank] = {**beat, "seq": self.seq}
        return dict(self.newest_heartbeats)


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [("start", 500), ("compile", 400), ("train", 100), ("data_wait", 80), ("collective", 80), ("eval", 60),
     ("save", 300), ("finished", 500)],
)  # fmt: skip
def test_a_stall_is_noticed_when_its_phase_is_over_and_not_before(phase, limit_s):
    ranks, watchdog = Ranks(1), Watchdog(LIMITS, {0: {}}, 0.0)
    ranks.at(0, phase, 7, 1)
    assert watchdog.find_stall(ranks.read(), 1.0) is None
    assert watchdog.find_stall(ranks.read(), 1.0 + limit_s + INTERVAL_S) is None
    stall = watchdog.find_stall(ranks.read(), 1.1 + limit_s + INTERVAL_S)
    assert stall is not None
    assert (stall.rank, stall.phase, stall.step, stall.limit_s) == (0, phase, 7, limit_s + INTERVAL_S)


def test_a_child_that_never_says_a_word_stands_still_at_its_start():
    watchdog = Watchdog(LIMITS, {0: {}}, 0.0)
    assert watchdog.find_stall({0: {}}, 505.0) is None
    stall = watchdog.find_stall({0: {}}, 505.1)
    assert stall is not None
    assert (stall.phase, stall.step, stall.is_silent) == ("start", None, True)


def test_heartbeats_of_an_earlier_session_say_nothing_of_this_one():
    old = {"seq": 9, "phase": "train", "last_progress_step": 40}
    watchdog = Watchdog(LIMITS, {0: old}, 0.0)
    assert watchdog.find_stall({0: old}, 200.0) is None, "its start has a longer limit than a step"


def test_what_nobody_was_there_to_see_is_no_stall():
    """A job that is suspended for hours has all its ranks and its launcher stand still."""
    now_s = [1000.0]
    clock = AwakeClock(lambda: now_s[0])
    ranks, watchdog = Ranks(1), Watchdog(LIMITS, {0: {}}, clock())
    ranks.at(0, "train", 7, 1)
    assert watchdog.find_stall(ranks.read(), clock()) is None
    now_s[0] += 36_000
    assert watchdog.find_stall(dict(ranks.newest_heartbeats), clock()) is None
    for _ in range(199):
        now_s[0] += 0.5
        assert watchdog.find_stall(ranks.read(), clock()) is None
    for _ in range(30):
        now_s[0] += 0.5
        stall = watchdog.find_stall(ranks.read(), clock())
    assert stall is not None


def test_life_is_no_progress():
    ranks, watchdog = Ranks(1), Watchdog(LIMITS, {0: {}}, 0.0)
    ranks.at(0, "train", 3, 1)
    found = [watchdog.find_stall(ranks.read(), float(second)) for second in range(0, 130, 5)]
    assert found[-1] is not None
    assert not found[-1].is_silent


def test_progress_within_a_step_is_progress():
    ranks, watchdog = Ranks(1), Watchdog(LIMITS, {0: {}}, 0.0)
    for second in range(0, 1000, 50):
        ranks.at(0, "eval", 3, second)
        assert watchdog.find_stall(ranks.read(), float(second)) is None


@pytest.mark.parametrize(
    ("longest_s", "limit_s"), [(None, 100), (0.01, 20), (2.5, 25), (9.0, 90), (50.0, 100)]
)
def test_a_limit_is_learned_between_a_floor_and_what_the_config_allows(longest_s, limit_s):
    seen = {} if longest_s is None else {"train": longest_s, "eval": 0.001}
    beat = {"phase": "train", "phase_longest_s": seen}
    assert Watchdog(LIMITS, {0: {}}, 0.0).limit_s(beat) == limit_s + INTERVAL_S


def test_of_waiting_ranks_the_one_that_got_least_far_is_named():
    ranks, watchdog = Ranks(3), Watchdog(LIMITS, {0: {}, 1: {}, 2: {}}, 0.0)
    ranks.at(0, "collective", 9, 12)
    ranks.at(1, "data_wait", 9, 11)
    ranks.at(2, "collective", 9, 13)
    assert watchdog.find_stall(ranks.read(), 0.0) is None
    for second in range(5, 95, 5):
        stall = watchdog.find_stall(ranks.read(), float(second))
    assert stall is not None
    assert (stall.rank, stall.phase, stall.is_silent) == (1, "data_wait", False)


def test_a_rank_that_is_mute_is_named_before_one_that_got_less_far():
    ranks, watchdog = Ranks(2), Watchdog(LIMITS, {0: {}, 1: {}}, 0.0)
    ranks.at(0, "data_wait", 9, 11)
    ranks.at(1, "train", 9, 14)
    watchdog.find_stall(ranks.read(), 0.0)
    for second in range(5, 115, 5):
        stall = watchdog.find_stall(ranks.read(mute=(1,)), float(second))
    assert stall is not None
    assert (stall.rank, stall.is_silent) == (1, True)
    assert str(stall).endswith("and wrote no heartbeats; the last one was in train")


def test_one_rank_that_gets_further_keeps_all_alive():
    ranks, watchdog = Ranks(2), Watchdog(LIMITS, {0: {}, 1: {}}, 0.0)
    for second in range(0, 2000, 40):
        ranks.at(0, "start", None, second)
        ranks.at(1, "start", None, 0)
        assert watchdog.find_stall(ranks.read(), float(second)) is None


@given(st.lists(st.floats(0.1, 80), min_size=1, max_size=30))
def test_no_run_is_ended_that_gets_further_in_time(pauses):
    ranks, watchdog, now_s = Ranks(1), Watchdog(LIMITS, {0: {}}, 0.0), 0.0
    for number, pause_s in enumerate(pauses):
        ranks.at(0, "data_wait", number, number)
        assert watchdog.find_stall(ranks.read(), now_s) is None
        now_s += pause_s
        assert watchdog.find_stall(ranks.read(), now_s) is None
