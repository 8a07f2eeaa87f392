"""Signals during a launch: before the trainer starts they end the launch, afterwards they are forwarded."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from launcher.process import trainer_process
from launcher.process.termination import signal_name
from launcher.terminal import console

# A scheduler's stop, its early warning, a closed terminal: save and stop.
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
PATIENCE = 2


class StoppedEarlyError(BaseException):
    """Stop request before the trainer was started. A BaseException, so that no probe catches it."""


class Forwarder:
    """Forwarder of signals to the trainer's workers; the third Ctrl-C kills them.

    Signals after the end of the run are recorded only, because they must not change its outcome.
    """

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.has_agent = False
        self.seen: list[int] = []
        self._num_reported = 0
        self._is_in_charge = False
        self._interrupt = signal.getsignal(signal.SIGINT)

    def keep_for_trainer(self, *, has_agent: bool) -> None:
        """Keep signals for the trainer from now on, even if it has not started yet.

        `has_agent`: the trainer runs under torchrun. Signals then go to its ranks, not to torchrun.
        """
        self._is_in_charge, self.has_agent = True, has_agent

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """Forward signals to this child, starting with the last one received before its start."""
        self.child = child
        if self.seen:
            self._handle_signal(self.seen[-1])

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Forward one signal; every signal that asks to save and stop reaches the trainer as SIGTERM.

        Before `keep_for_trainer`, Ctrl-C has its usual effect, and others raise `StoppedEarlyError`.
        """
        if not self._is_in_charge:
            self._stop_before_start(number, frame)
            return
        # Appended first: printing happens later, in print_new, because handlers may interrupt a print.
        self.seen.append(number)
        self._handle_signal(number)

    def stop(self) -> None:
        """Ask the trainer to save and stop, without recording a signal."""
        self._send_to_workers(signal.SIGTERM)

    def print_new(self) -> None:
        """Print the effect of new signals; the signal handler must not print, as it may interrupt a print."""
        while self._num_reported < len(self.seen):
            self._num_reported += 1
            console.log(effect_text(self.seen[: self._num_reported]))

    def _stop_before_start(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            raise StoppedEarlyError
        if callable(self._interrupt):
            self._interrupt(number, frame)

    def _handle_signal(self, number: int) -> None:
        forwarded = signal.SIGTERM if number in STOPS else number
        self._send_to_workers(forwarded if self.seen.count(signal.SIGINT) <= PATIENCE else signal.SIGKILL)

    def _send_to_workers(self, number: int) -> None:
        if self.child is None:
            return
        if self.has_agent:
            # torchrun would kill its workers within seconds of its own signal: a save may take longer.
            targets = self._workers(self.child)
            for worker in targets:
                with suppress(psutil.Error):
                    worker.send_signal(number)
            if not targets or number == signal.SIGKILL:
                self.child.send_signal(number)
        elif self.child.poll() is None:
            with suppress(ProcessLookupError):  # it may have been reaped below this handler
                os.killpg(self.child.pid, number)

    def _workers(self, child: subprocess.Popen[bytes]) -> list[psutil.Process]:
        try:
            descendants = psutil.Process(child.pid).children(recursive=True)
        except psutil.Error:
            return []
        return [each for each in descendants if _is_worker(each)]


def effect_text(signals: Sequence[int]) -> str:
    """Return the message to the user about the effect of the last of these signals."""
    name = "Ctrl-C" if signals[-1] == signal.SIGINT else signal_name(signals[-1])
    count = signals.count(signal.SIGINT)
    if count > PATIENCE:
        return f"{name}: killing the run"
    message = f"{name}: finishing this step, saving a checkpoint, then exiting"
    again = "; another Ctrl-C kills the run and loses the steps since the last save"
    return f"{message}{again}" if count == PATIENCE else message


def _is_worker(candidate: psutil.Process) -> bool:
    try:
        return trainer_process.TRAINER_MODULE in candidate.cmdline()
    except psutil.Error:
        return False


@contextmanager
def forward_signals() -> Iterator[Forwarder]:
    """Forward signals to the trainer inside the `with` block."""
    with handle_signals(forwarder := Forwarder()):
        yield forwarder


@contextmanager
def handle_signals(forwarder: Forwarder) -> Iterator[None]:
    """Handle signals inside the `with` block; an ignored SIGHUP (`nohup`) stays ignored."""
    has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    handled = [number for number in (signal.SIGINT, *STOPS) if number != signal.SIGHUP or has_terminal]
    before = {number: signal.signal(number, forwarder) for number in handled}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
