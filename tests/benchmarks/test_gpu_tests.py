"""What came of tests, each by itself, as one figure."""

from __future__ import annotations

import json

import gpu_tests

TESTS = """
import pytest
def test_sound(): pass
def test_broken(): assert 1 == 2
@pytest.mark.skip(reason="no device")
def test_elsewhere(): pass
"""


def test_the_share_is_of_those_that_ran_and_each_is_named(tmp_path):
    tests = tmp_path / "test_planted.py"
    tests.write_text(TESTS, encoding="utf-8")
    assert gpu_tests.main([str(tests), "--name", "planted", "--output", str(tmp_path)]) == 1
    figure = json.loads((tmp_path / "planted.json").read_text(encoding="utf-8"))
    assert (figure["metric"], figure["value"], figure["target"]) == ("planted", 0.5, 1.0)
    assert figure["detail"]["count"] == {"passed": 1, "failed": 1, "skipped": 1}
    told = {name.rpartition(".")[2]: each for name, each in figure["detail"]["tests"].items()}
    assert told["test_sound"]["outcome"] == "passed"
    assert told["test_broken"]["why"] == "assert 1 == 2"
    assert told["test_elsewhere"]["why"] == "no device"
