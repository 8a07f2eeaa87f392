"""A child that says no more: how it ended is told, and it is ended where it has not."""

import sys

import pytest

from neobert.bench import conductor
from neobert.bench.conductor import Worker
from neobert.errors import ProjectError

HANGS = "import os, time; os.close(1); time.sleep(600)"
ENDS = "raise SystemExit(7)"


@pytest.mark.parametrize(("does", "reported"), [(HANGS, "exit code -9"), (ENDS, "exit code 7")])
def test_a_child_without_an_answer_is_told_by_its_end(does, reported, tmp_path, monkeypatch):
    monkeypatch.setattr(conductor, "TIMEOUT_S", 1.0)
    start = conductor.subprocess.Popen
    monkeypatch.setattr(
        conductor.subprocess, "Popen", lambda _, **options: start([sys.executable, "-c", does], **options)
    )
    arm = Worker("a", tmp_path / "a.json", "synthetic")
    with pytest.raises(ProjectError, match=reported):
        arm.call("describe")
    arm.close()
