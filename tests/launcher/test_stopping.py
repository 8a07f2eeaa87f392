"""A command that is ended from outside: its code, what it says, and that it leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.cli.errors import STOPPED
from launcher.process import json_child
from launcher.process.termination import TerminatedError

pytestmark = pytest.mark.child

HERE = Path(__file__).parent
PATIENCE_S = 60
WITH_FAKE_CHILD = """
import importlib, sys
from launcher.process import json_child, trainer_process
trainer_process.TRAINER_PACKAGES = ()
json_child.LAST_LINES_S = 0.1  # the grandchild keeps the pipe open
module, name = sys.argv.pop(1), sys.argv.pop(1)
setattr(importlib.import_module(module), name, "fake_child")
from launcher.cli.app import main
main()
"""
COMMANDS = {
    "bench": (["launcher.commands.bench", "MODULE"], ["bench", "-p", "cpu-demo"]),
    "prepare": (["launcher.commands.data", "PREPARE"], ["data", "prepare", "-p", "cpu-demo"]),
    "validate-gpu": (["launcher.probes.trials", "SUITE"], ["validate-gpu", "-p", "cpu-demo"]),
    # Its host probes ask git, which stands in the way of PATH here.
    "train": (
        ["launcher.probes.trials", "SUITE"],
        ["train", "-p", "cpu-demo", "--trainer.output_dir=run"],
    ),
    "rehearsal": (
        ["launcher.preflight.rehearsal_children", "MODULE"],
        ["preflight", "-p", "cpu-demo", "--level", "rehearsal"],
    ),
}
PROBES = ("validate-gpu", "rehearsal", "train")


def heed() -> None:
    """The tests may run under nohup, or in the background."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command whose child has started one of its own."""
    started: list[subprocess.Popen[str]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "TMPDIR": str(tmp_path / "scratch"),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    (tmp_path / "scratch").mkdir()
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\nexec {sys.executable} -m fake_child\n", encoding="utf-8")
    git.chmod(0o755)

    def start(name: str, *more: str, **how: Any) -> subprocess.Popen[str]:
        patch, words = COMMANDS[name]
        command = [sys.executable, "-c", WITH_FAKE_CHILD, *patch, *words, *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes, **{"preexec_fn": heed} | how))
        until_s = time.monotonic() + PATIENCE_S
        while not family():
            assert started[-1].poll() is None, started[-1].communicate()
            assert time.monotonic() < until_s
            time.sleep(0.02)
        return started[-1]

    def family() -> list[int]:
        try:
            return [int(pid) for path in tmp_path.rglob("pids") for pid in path.read_text().split()]
        except FileNotFoundError:  # a folder that the search came to has just been removed
            return []

    yield start
    for child in started:
        child.kill()
    for pid in family():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two lines
            psutil.Process(pid).kill()
    for child in started:
        child.communicate()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def nothing_is_left(name: str, tmp_path: Path) -> None:
    (pids,) = tmp_path.rglob("pids")
    family = [int(pid) for pid in pids.read_text().split()]
    until_s = time.monotonic() + PATIENCE_S  # one that was killed still runs until the kernel comes to it
    while any(map(is_running, family)) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert [pid for pid in family if is_running(pid)] == []
    left = {path.name.rpartition("-")[0] for path in (tmp_path / "scratch").iterdir()}
    assert left == ({"fake-child"} if name in PROBES else set())  # probes are killed
    assert list(tmp_path.glob("**/.rehearsal-*")) == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "number", "code"),
    [
        *((name, signal.SIGTERM, 143) for name in ("prepare", "validate-gpu", "rehearsal")),
        ("bench", signal.SIGINT, 130),
        ("bench", signal.SIGHUP, 129),
    ],
)
def test_a_command_that_is_ended_leaves_nothing(name, number, code, begin, tmp_path):
    child = begin(name, "--output-format", "json")
    child.send_signal(number)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == code, err
    nothing_is_left(name, tmp_path)
    reported = json.loads(out)
    (finding,) = reported["findings"]
    assert reported["exit_code"] == code
    assert finding["code"] == ("interrupted" if number == signal.SIGINT else "terminated")
    assert "no process is left running" in finding["message"]


@pytest.mark.e2e
def test_a_held_ctrl_c_leaves_nothing_either(begin, tmp_path):
    child = begin("bench")
    for _ in range(10_000):  # wherever the command is, also while it stops its child and ends
        child.send_signal(signal.SIGINT)
        time.sleep(0.001)
        if child.poll() is not None:
            break
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (130, "")
    assert err == f"Ctrl-C: stopping\nerror: Ctrl-C: {STOPPED} [interrupted]\n"
    nothing_is_left("bench", tmp_path)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["bench", "validate-gpu"])
def test_a_job_in_the_background_whose_launcher_is_killed_leaves_nothing(name, begin, tmp_path):
    child = begin(name, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    (pids,) = tmp_path.rglob("pids")
    requested = int(pids.read_text().split()[0])  # before the kill: its folder is removed soon after
    child.kill()
    until_s = time.monotonic() + PATIENCE_S
    while is_running(requested) or list((tmp_path / "scratch").glob("fake-child-*")):
        assert time.monotonic() < until_s, "it is stopped, and its folder is removed after it"
        time.sleep(0.02)


@pytest.mark.e2e
def test_a_signal_that_is_ignored_stays_ignored(begin):
    child = begin("bench", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    child.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert child.poll() is None, "nohup keeps a command over the end of its terminal"


@pytest.mark.parametrize(
    ("error", "line"),
    [(KeyboardInterrupt(), "Ctrl-C: stopping\n"), (TerminatedError(signal.SIGTERM), "SIGTERM: stopping\n")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_stop_is_announced_and_reaches_the_child_without_delay(error, line, monkeypatch, capsys):
    """The traceback with which the child ends is no message to the user."""
    monkeypatch.setattr(json_child, "LAST_LINES_S", float(PATIENCE_S))
    waits = (
        "import signal, time; signal.signal(2, signal.default_int_handler); "
        "print('ready', flush=True); time.sleep(600)"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", waits], **pipes)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    begun_s = time.monotonic()
    with (
        pytest.raises(type(error)),
        json_child.stop_on_exception(child),
        json_child.forward_stderr(child.stderr),
    ):
        raise error
    child.stdout.close()
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert child.returncode == -signal.SIGINT
    assert capsys.readouterr().err == line


def test_a_child_that_ignores_the_keyboard_is_killed_in_the_end(monkeypatch):
    monkeypatch.setattr(json_child, "STOPPING_S", 0.1)
    deaf = (
        "import signal, time; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with child, pytest.raises(KeyboardInterrupt), json_child.stop_on_exception(child):
        raise KeyboardInterrupt
    assert child.returncode == -signal.SIGKILL


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("number", "code", "finds", "output_format"),
    [
        (signal.SIGTERM, 75, "stopped-early", "text"),
        (signal.SIGUSR1, 75, "stopped-early", "json"),
        (signal.SIGINT, 130, "interrupted", "json"),
    ],
)
def test_a_launch_that_is_stopped_before_it_trains(number, code, finds, output_format, begin, tmp_path):
    child = begin("train", "--output-format", output_format)
    child.send_signal(number)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == code, err
    nothing_is_left("train", tmp_path)
    assert not Path("run").exists()
    if output_format == "json":
        (finding,) = json.loads(out)["findings"]
        assert finding["code"] == finds
    else:
        assert out == ""
        assert f"[{finds}]" in err
