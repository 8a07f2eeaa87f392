"""Signals of a launch: what they mean before there is a trainer, beside it, and after it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from launcher.commands import train
from launcher.process.signal_forwarding import (
    STOPS,
    Forwarder,
    effect_text,
    forward_signals,
)
from launcher.process.trainer_process import start_trainer_process, wait_for_child
from launcher.run.summary import Summary

pytestmark = pytest.mark.child

SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"
OUTLIVES_SIGNALS = "import signal\nfor n in (2, 10, 15): signal.signal(n, signal.SIG_IGN)\n" + SLEEPS
ENDED = Summary(
    "failed", 93, 500, 900, None, None, None, None, None, "run/checkpoints/400", "run", 1, "it cannot", "look"
)


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    """A runner that was started by `nohup`, or by a CI job, may have had the closed terminal ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def sleeper(tmp_path: Path, program: str) -> subprocess.Popen[bytes]:
    """Start a program, and return once it has printed something or ended."""
    log = tmp_path / "log"
    child = start_trainer_process([sys.executable, "-c", program], log, tmp_path / "error.json")
    while child.poll() is None and not log.stat().st_size:
        time.sleep(0.01)
    return child


def forwarder_of(child: subprocess.Popen[bytes], *, has_agent: bool = False) -> Forwarder:
    forwarder = Forwarder()
    forwarder.keep_for_trainer(has_agent=has_agent)
    forwarder.adopt(child)
    return forwarder


@contextmanager
def in_charge(child: subprocess.Popen[bytes]) -> Iterator[Forwarder]:
    with forward_signals() as forwarder:
        forwarder.keep_for_trainer(has_agent=False)
        forwarder.adopt(child)
        yield forwarder


def test_one_that_came_before_the_first_child_reaches_it(tmp_path):
    with forward_signals() as forwarder:
        forwarder.keep_for_trainer(has_agent=False)
        os.kill(os.getpid(), signal.SIGTERM)
        child = sleeper(tmp_path, SLEEPS)
        forwarder.adopt(child)
        assert wait_for_child(child, lambda: None) == -signal.SIGTERM


@pytest.mark.parametrize("number", [*STOPS, signal.SIGINT])
def test_when_the_run_has_ended_none_changes_how(number, tmp_path, command, monkeypatch):
    """A scheduler's second signal may come while we say how the run ended; 93 must not become 75."""
    write, child = train.console.write, sleeper(tmp_path, "")
    child.wait()

    def interrupted(text: str) -> None:
        os.kill(os.getpid(), number)
        write(text)

    def launched(request: Any, output_format: str, _begun_s: float, forwarder: Forwarder) -> int:
        forwarder.keep_for_trainer(has_agent=False)
        forwarder.adopt(child)
        monkeypatch.setattr(train, "console", SimpleNamespace(write=interrupted))
        return train._print_summary(ENDED, SimpleNamespace(request=request, output_format=output_format))

    monkeypatch.setattr(train, "_run", launched)
    answer = command("train", "-p", "cpu-demo")
    assert answer.code == 93
    assert "failed after step 500 of 900" in answer.out


def test_who_asks_a_run_to_stop_is_answered_once(capsys):
    forwarder = Forwarder()
    forwarder.keep_for_trainer(has_agent=False)
    answers = []
    for _ in range(3):
        forwarder(signal.SIGINT, None)
        forwarder.print_new()
        forwarder.print_new()
        answers.append(capsys.readouterr().err)
    assert answers[0] == "Ctrl-C: finishing this step, saving a checkpoint, then exiting\n"
    assert answers[1].endswith("; another Ctrl-C kills the run and loses the steps since the last save\n")
    assert answers[2] == "Ctrl-C: killing the run\n"
    assert effect_text([signal.SIGTERM]) == "SIGTERM: finishing this step, saving a checkpoint, then exiting"


def test_a_scheduler_s_warning_asks_to_save_and_stop(tmp_path):
    child = sleeper(tmp_path, SLEEPS)
    with in_charge(child):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wait_for_child(child, lambda: None) == -signal.SIGTERM


def test_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    child = sleeper(tmp_path, "")
    with in_charge(child):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    child.wait()


def test_the_third_ctrl_c_kills(tmp_path):
    child = sleeper(tmp_path, OUTLIVES_SIGNALS)
    forwarder = forwarder_of(child)
    for _ in range(2):
        forwarder(signal.SIGINT, None)
    assert child.poll() is None
    forwarder(signal.SIGINT, None)
    assert child.wait(timeout=60) == -signal.SIGKILL


class Worker:
    """A descendant of the agent; what it raises, it raises when it is asked what it is, or sent a signal."""

    def __init__(self, requested: psutil.Error | None = None, sent: psutil.Error | None = None) -> None:
        self.requested, self.sent, self.got = requested, sent, []

    def cmdline(self) -> list[str]:
        if self.requested:
            raise self.requested
        return [sys.executable, "-m", "neobert.train", "resolved.json"]

    def send_signal(self, number: int) -> None:
        if self.sent:
            raise self.sent
        self.got.append(number)


@pytest.mark.parametrize(
    "gone", [Worker(requested=psutil.ZombieProcess(7)), Worker(sent=psutil.NoSuchProcess(7))]
)
def test_a_worker_that_ends_keeps_no_signal_from_the_others(gone, tmp_path, monkeypatch):
    child = sleeper(tmp_path, SLEEPS)
    other = Worker()
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [gone, other])
    forwarder_of(child, has_agent=True)(signal.SIGTERM, None)
    time.sleep(0.1)
    assert other.got == [signal.SIGTERM]
    assert child.poll() is None, "torchrun itself would end its workers within seconds"
    child.kill()
    child.wait()


def test_many_sigterms_do_not_cut_a_save_short(tmp_path):
    child = sleeper(tmp_path, OUTLIVES_SIGNALS)
    forwarder = forwarder_of(child)
    for _ in range(5):
        forwarder(signal.SIGTERM, None)
    time.sleep(0.1)
    assert child.poll() is None
    child.kill()
    child.wait()
