"""A request is noted once and acted on where it can be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from neobert.training.signals import Signals, StopRequested


def send(number):
    os.kill(os.getpid(), number)


def test_the_first_request_counts_and_later_ones_change_nothing():
    signals = Signals()
    with signals.installed():
        assert signals.votes == [0, 0]
        send(signal.SIGTERM)
        send(signal.SIGINT)
    assert (signals.status, signals.exit_code, signals.votes) == ("preempted", 75, [1, 0])


def test_an_interrupt_has_its_own_status():
    signals = Signals()
    with signals.installed():
        send(signal.SIGINT)
    assert (signals.status, signals.exit_code, signals.votes) == ("interrupted", 130, [0, 1])


def wait_for_ever(signals):
    later = threading.Timer(0.05, send, [signal.SIGTERM])
    later.start()
    with signals.interrupting():
        threading.Event().wait(60)
        pytest.fail("the wait went on")


def test_a_wait_is_ended():
    signals = Signals()
    with signals.installed(), pytest.raises(StopRequested):
        wait_for_ever(signals)


def test_a_wait_does_not_begin_after_a_request():
    signals = Signals()
    with signals.installed():
        send(signal.SIGTERM)
        with pytest.raises(StopRequested), signals.interrupting():
            pytest.fail("nothing may be waited for")


def test_work_is_not_interrupted():
    signals = Signals()
    with signals.installed():
        with signals.interrupting():
            pass
        send(signal.SIGTERM)
    assert signals.requested == signal.SIGTERM


def test_all_ranks_obey_a_request_to_one():
    signals = Signals()
    signals.obey([0, 0])
    with pytest.raises(StopRequested):
        signals.obey([0, 3])
    assert signals.status == "interrupted"


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Signals().installed():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_listening_needs_no_torch():
    code = "import sys, neobert.train; sys.exit(bool({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
