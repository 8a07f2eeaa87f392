"""F16: SIGKILL at every point of a save, and at random times. It costs the steps since the last save."""

import pytest

from tests.faults.kill_points import POINTS

pytestmark = pytest.mark.e2e


def test_a_kill_at_any_point_of_a_save_is_gone_on_from(report, tmp_path):
    points = report("kill_points", tmp_path)
    assert list(points) == list(POINTS)
    control = points.pop("nowhere")
    assert (control["ended"], control["newest"]) == (0, 12)
    assert {point: found["ended"] for point, found in points.items()} == dict.fromkeys(points, -9)
    for point, found in points.items():
        assert found["newest"] in (2, 4, 6, 8), point
        assert (found["resumed"], found["is_equal"]) == (0, True), point
        assert {"10", "12", "best", "latest"} <= set(found["left"]), point
        assert not [name for name in found["left"] if name.startswith(".")], point


def test_kills_at_random_times_leave_one_history(report):
    tally = report("random_kills", "--kills", 6, "--seed", 3, "--steps", 20)
    assert tally["faults"] == []
    assert (tally["kills"], tally["resumed"]) == (6, 6)
    assert tally["with_progress"] > 0
