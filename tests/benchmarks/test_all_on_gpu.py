"""The session of all benchmarks: one that fails costs its own figures and no others."""

from __future__ import annotations

import sys
import time

import all_on_gpu
import psutil
import pytest
from all_on_gpu import BENCHMARKS, HERE, Benchmark

WRITES = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from measurement import write_measurement
write_measurement(Path(sys.argv[-1]) / "good.json", 1.5, "ratio", 2.0, {{}})
"""


@pytest.fixture
def session(tmp_path, monkeypatch, capsys):
    """Run the session with planted benchmarks; return its exit code and what it printed."""

    def run(limit_s: int = 30, **scripts: str) -> tuple[int, str]:
        planted = {}
        for name, text in scripts.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text.format(here=str(HERE)))
            planted[name] = Benchmark(str(path), (), (name,), limit_s)
        monkeypatch.setattr(all_on_gpu, "BENCHMARKS", planted)
        monkeypatch.setattr(sys, "argv", ["all_on_gpu.py", str(tmp_path / "out")])
        return all_on_gpu.main(), capsys.readouterr().out

    return run


@pytest.mark.usefixtures("warm")
def test_a_failure_leaves_the_others_alone(session, tmp_path):
    exit_code, printed = session(bad="raise SystemExit('planted')", good=WRITES)
    assert exit_code == 1
    bad, good = printed.splitlines()[-2:]
    assert bad.split() == ["bad", "missing"]
    assert good.split() == ["good", "1.5", "2", "ratio"]
    assert "planted" in (tmp_path / "out" / "bad.log").read_text()


def test_what_takes_too_long_is_ended_with_its_children(session, tmp_path):
    forks = "import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    assert session(5, slow=forks.format(code=code).replace("{", "{{").replace("}", "}}"))[0] == 1
    assert "no end within" in (tmp_path / "out" / "slow.log").read_text()
    until_s = time.monotonic() + 60
    while psutil.pid_exists(int(pid.read_text())) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.usefixtures("warm")
def test_what_an_earlier_session_left_is_not_told_again(session):
    assert session(good=WRITES)[0] == 0
    exit_code, printed = session(good="pass")
    assert exit_code == 1
    assert "missing" in printed


def test_every_script_is_there_and_ends_within_a_limit():
    assert all((HERE / each.script).exists() for each in BENCHMARKS.values())
    figures = [figure for each in BENCHMARKS.values() for figure in each.figures]
    assert len(set(figures)) == len(figures)
