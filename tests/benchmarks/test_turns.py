"""A contender that hangs ends its own turns, not the contest."""

import sys
from contextlib import closing

import pytest
from peers import turn_taking

PROGRAM = """
import json, sys, time
for line in sys.stdin:
    steps = json.loads(line)["steps"]
    time.sleep(60 if steps == 9 else 0)
    print(json.dumps({"steps": steps}), flush=True)
"""


def test_a_child_that_hangs_is_killed_and_its_last_answers_are_kept(tmp_path, monkeypatch):
    folder = tmp_path / "peers"
    folder.mkdir()
    (folder / "sleeper.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr(turn_taking, "BENCHMARKS", tmp_path)
    with closing(turn_taking.ArmProcess("sleeper", [], sys.stderr, patience_s=5.0)) as child:
        assert child.call(2) == {"steps": 2}
        with pytest.raises(RuntimeError, match="exit code -9, after 5 s without an answer"):
            child.call(9)
