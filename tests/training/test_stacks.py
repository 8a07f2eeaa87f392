"""Stacks on request, also from a thread that has never given the interpreter's lock away."""

import os
import signal
import subprocess
import sys
import time

from neobert.runfiles.run_dir import stacks_path

PROGRAM = """
import re, sys, pathlib
from neobert.runfiles.run_dir import dump_stacks_on_signal
path = pathlib.Path(sys.argv[1])
dump_stacks_on_signal(path)
def backtrack():
    (path.parent / "ready").touch()
    re.match(r"(a+)+$", "a" * 60 + "b")
backtrack()
"""


def test_a_call_that_holds_the_interpreter_does_not_hold_the_dump(tmp_path):
    path = stacks_path(tmp_path, 3)
    assert path == tmp_path / "logs" / "rank_3.stacks"
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)])
    try:
        deadline_s = time.monotonic() + 60
        while not (path.parent / "ready").exists() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        time.sleep(0.05)
        os.kill(child.pid, signal.SIGUSR2)
        while b"in backtrack" not in path.read_bytes() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert child.poll() is None
        assert "in backtrack" in path.read_text(encoding="utf-8")
    finally:
        child.kill()
        child.wait()
