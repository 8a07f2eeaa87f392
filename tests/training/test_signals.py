"""A request is noted once and acted on where it can be."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from neobert.training.loop.signals import Signals, StopRequested


def send(number):
    os.kill(os.getpid(), number)


def test_the_first_request_counts_and_later_ones_change_nothing():
    signals = Signals()
    with signals.handle_signals():
        assert signals.votes == [0, 0]
        send(signal.SIGTERM)
        send(signal.SIGINT)
    assert (signals.status, signals.exit_code, signals.votes) == ("preempted", 75, [1, 0])


def wait_for_ever(signals):
    later = threading.Timer(0.05, send, [signal.SIGTERM])
    later.start()
    with signals.raise_on_request():
        threading.Event().wait(60)
        pytest.fail("the wait went on")


def test_a_wait_is_ended():
    signals = Signals()
    with signals.handle_signals(), pytest.raises(StopRequested):
        wait_for_ever(signals)


def test_a_wait_does_not_begin_after_a_request():
    signals = Signals()
    with signals.handle_signals():
        send(signal.SIGTERM)
        with pytest.raises(StopRequested), signals.raise_on_request():
            pytest.fail("nothing may be waited for")


def test_work_is_not_interrupted():
    signals = Signals()
    with signals.handle_signals():
        with signals.raise_on_request():
            pass
        send(signal.SIGTERM)
    assert signals.requested == signal.SIGTERM


def test_all_ranks_obey_a_request_to_one():
    signals = Signals()
    signals.stop_if_requested([0, 0])
    with pytest.raises(StopRequested):
        signals.stop_if_requested([0, 3])
    assert signals.status == "interrupted"


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Signals().handle_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_listening_needs_no_torch():
    code = "import sys, neobert.train; sys.exit(bool({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_schedulers_warning_asks_for_what_its_signal_asks_for():
    signals = Signals()
    with signals.handle_signals():
        send(signal.SIGUSR1)
    assert (signals.status, signals.votes) == ("preempted", [1, 0])


def test_a_second_request_is_answered_aloud_and_cuts_nothing_short(capfd):
    signals = Signals()
    with signals.handle_signals():
        send(signal.SIGTERM)
        assert capfd.readouterr().out == ""
        send(signal.SIGTERM)
    assert "the save in flight continues" in capfd.readouterr().out
    assert signals.status == "preempted"


@pytest.fixture
def clock():
    """Turn the clock by hand."""
    return [1000.0]


def test_the_clock_asks_when_the_lead_is_reached(clock):
    signals, lead_s = Signals(), [10.0]
    signals.stop_by(2000.0, lambda: lead_s[0], lambda: clock[0])
    clock[0] = 1989.0
    assert signals.votes == [0, 0]
    clock[0] = 1990.0
    assert signals.votes == [1, 0]
    assert (signals.status, signals.exit_code) == ("preempted", 75)


def test_a_longer_save_asks_earlier_and_never_before_most_of_the_job_is_done(clock):
    signals, lead_s = Signals(), [10.0]
    signals.stop_by(2000.0, lambda: lead_s[0], lambda: clock[0])
    clock[0] = 1950.0
    assert signals.votes == [0, 0]
    lead_s[0] = 60.0
    assert signals.votes == [1, 0]
    short = Signals()
    clock[0] = 1000.0
    short.stop_by(1100.0, lambda: 500.0, lambda: clock[0])
    assert short.votes == [0, 0]
    clock[0] = 1091.0
    assert short.votes == [1, 0]


def test_a_forked_process_does_not_inherit_what_a_request_means():
    program = (
        "import os, signal, time\n"
        "from neobert.training.loop.signals import Signals\n"
        "signals = Signals()\n"
        "with signals.handle_signals():\n"
        "    heard, ready = os.pipe()\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os.write(ready, b'1')\n"
        "        time.sleep(60)\n"
        "        os._exit(1)\n"
        "    os.read(heard, 1)\n"
        "    os.kill(pid, signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), signals.requested)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.split() == ["-15", "None"]
