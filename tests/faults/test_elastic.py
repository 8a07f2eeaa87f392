"""A run on 4, 2 and 4 ranks that keeps its step: it sees the same samples, and comes to the same losses."""

import pytest

from tests.faults.elastic_sessions import END, SESSIONS

pytestmark = pytest.mark.e2e


def test_a_run_keeps_its_steps_on_other_numbers_of_ranks(report, tmp_path):
    found = report("elastic_sessions", tmp_path)
    assert {code for run in found.values() for code in run["codes"]} == {0}
    undisturbed, elastic = found["undisturbed"], found["elastic"]
    assert list(undisturbed["losses"]) == [str(step) for step in range(1, END + 1)]
    assert elastic["samples"] == undisturbed["samples"]
    assert elastic["losses"] == pytest.approx(undisturbed["losses"], rel=1e-5)

    first, second = (str(SESSIONS[0][1] + later) for later in (1, 2))
    assert found["skipped"]["samples"][first] != undisturbed["samples"][first]
    assert found["skipped"]["losses"][first] != pytest.approx(undisturbed["losses"][first], rel=1e-5)
    # The gradient of the first step on fewer ranks is wrong, and so is the loss of the one after it.
    assert found["divisor"]["samples"][second] == undisturbed["samples"][second]
    assert found["divisor"]["losses"][second] != pytest.approx(undisturbed["losses"][second], rel=1e-5)
