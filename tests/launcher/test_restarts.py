"""Which failures are tried again, how often, and what the run ends with otherwise."""

import signal

import pytest

from launcher.run.supervision import (
    RestartPolicy,
    failure_from_error,
    failure_from_lost_rank,
    failure_from_stall,
)
from launcher.rundir.stalls import Stall
from neobert.errors import ProjectError

NAN = ProjectError("NAN001", "no number", exit_code=4)


def stall(phase: str) -> Stall:
    return Stall(rank=1, phase=phase, step=7, silence_s=100, limit_s=90, is_silent=False)


SAME_EACH_TIME = [
    failure_from_error(NAN, 7),
    failure_from_lost_rank(0, signal.SIGSEGV, 7),
    failure_from_stall(stall("train"), 7),
    failure_from_stall(stall("compile"), 7),
]
MAY_PASS = [
    failure_from_lost_rank(1, signal.SIGKILL, 7),
    failure_from_stall(stall("data_wait"), 7),
    failure_from_stall(stall("save"), 7),
    failure_from_stall(stall("collective"), 7),
    failure_from_error(ProjectError("DAT010", "no text", exit_code=4), 7),
]


def test_a_signal_without_a_name_is_told_by_its_number():
    assert failure_from_lost_rank(2, signal.SIGRTMIN + 1, 7).message == "rank 2 was killed by signal 35"


@pytest.mark.parametrize("failure", SAME_EACH_TIME, ids=str)
def test_what_fails_in_the_same_way_twice_is_not_to_be_queued_again(failure):
    restarts = RestartPolicy(most=5)
    assert restarts.judge(failure, 0).restarts
    verdict = restarts.judge(failure, 0)
    assert (verdict.restarts, verdict.exit_code) == (False, 93)
    assert "step 7" in verdict.reason


@pytest.mark.parametrize("failure", MAY_PASS, ids=str)
def test_what_may_pass_is_tried_to_the_limit_and_may_be_queued_again(failure):
    restarts = RestartPolicy(most=2)
    assert [restarts.judge(failure, 0).restarts for _ in range(2)] == [True, True]
    verdict = restarts.judge(failure, 0)
    assert (verdict.restarts, verdict.exit_code) == (False, 4)


def test_the_same_failure_elsewhere_is_another_one():
    restarts = RestartPolicy(most=5)
    assert all(restarts.judge(failure_from_error(NAN, step), 0).restarts for step in (7, 8, 9))


def test_another_checkpoint_makes_them_few_again():
    restarts, lost = RestartPolicy(most=1), failure_from_lost_rank(0, signal.SIGKILL, 7)
    assert all(restarts.judge(lost, saved).restarts for saved in (0, 10, 20, 30))
    assert not restarts.judge(lost, 30).restarts


def test_none_is_none():
    verdict = RestartPolicy(most=0).judge(MAY_PASS[0], 0)
    assert (verdict.restarts, verdict.exit_code, verdict.reason) == (False, 4, "")
