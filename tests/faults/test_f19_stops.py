"""F19: asked to stop in any phase, on one process and on two, a run saves and asks to be queued again."""

import pytest

from tests.faults.stops import NOWHERE, PLACES

pytestmark = pytest.mark.e2e

BEFORE_THE_MODEL = ("preparation", "first preparation")
EVALUATED_EVERY, SAVED_AT, STEPS = 6, 4, 12


def test_a_stop_in_any_phase_is_saved_on_one_process_and_on_two(report, tmp_path):
    found = report("stops", tmp_path)
    assert list(found) == [f"{phase}, {ranks}" for ranks in (1, 2) for phase in (NOWHERE, *PLACES)]
    for ranks in (1, 2):
        control = found.pop(f"{NOWHERE}, {ranks}")
        assert (control["codes"], control["saved"]) == ([0] * ranks, STEPS)
    for name, ended in found.items():
        phase, ranks = name.split(", ")
        outcome = ended["outcome"]
        assert ended["codes"] == [75] * int(ranks), name
        assert (outcome["status"], outcome["exit_code"]) == ("preempted", 75), name
        assert ended["saved"] == (None if phase in BEFORE_THE_MODEL else outcome["step"]), name
    for ranks in (1, 2):
        steps = {phase: found[f"{phase}, {ranks}"]["outcome"]["step"] for phase in PLACES}
        assert (steps["start"], steps["warm-up"], steps["save"]) == (0, 1, SAVED_AT)
        assert steps["evaluation"] % EVALUATED_EVERY == 0
        assert SAVED_AT <= steps["first failed save"] <= 2 * SAVED_AT
        assert 0 < steps["step"] < STEPS
        assert 0 < steps["collective"] < STEPS
