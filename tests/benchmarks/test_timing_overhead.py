"""The dry run of what timing costs: two arms that differ in nothing else, and a figure in the common form."""

from __future__ import annotations

import json

import pytest
import timing_overhead


def test_the_arms_differ_in_the_timing_alone():
    for is_tiny in (True, False):
        asked = timing_overhead.request(is_tiny=is_tiny, kernels="triton", rounds=6)
        a, b = (dict(asked.arms[name]["trainer"]) for name in "ab")
        assert (a.pop("timing_breakdown"), b.pop("timing_breakdown")) == (False, True)
        assert a == b
        assert asked.arms["a"]["model"] == asked.arms["b"]["model"]


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_dry_run_writes_a_figure(tmp_path):
    path = tmp_path / "timing-overhead.json"
    timing_overhead.main([str(path), "--tiny", "--rounds", "6"])
    figure = json.loads(path.read_text(encoding="utf-8"))
    assert (figure["metric"], figure["target"]) == ("timing-overhead", 0.005)
    assert figure["value"] == pytest.approx(1 / figure["detail"]["comparison"]["ratio"] - 1)
    timed = figure["detail"]["arms"]["b"]
    assert 0.5 < timed["parts_of_step"] < 1.01
    assert timed["means"]["time/backward_ms"] > 0
    assert figure["detail"]["arms"]["a"]["parts_of_step"] is None
