"""The signals of a launch: one ends it before there is a trainer; then they are its own, then nobody's."""

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

# A scheduler's word, its early warning, a terminal that closes: save and stop.
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
PATIENCE = 2


class StoppedEarlyError(BaseException):
    """A scheduler ends the job, and there is no trainer yet. No probe may take it for a fault of its own."""


class Forwarder:
    """Passes signals on to the workers. Ctrl-C is the trainer's to answer twice; the third one kills it.

    One that comes when the run has ended is noted and no more: how a run ended is not for it to change.
    """

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.has_agent = False
        self.seen: list[int] = []
        self._num_told = 0
        self._is_in_charge = False
        self._interrupt = signal.getsignal(signal.SIGINT)

    def take_charge(self, *, has_agent: bool) -> None:
        """Keep signals for a trainer from now on, though there may be none yet."""
        self._is_in_charge, self.has_agent = True, has_agent

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """Forward to this child from now on, and what came before there was one."""
        self.child = child
        if self.seen:
            self._pass_on(self.seen[-1])

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Forward one signal; the trainer knows SIGTERM for all that ask it to save and stop."""
        if not self._is_in_charge:
            self._end_early(number, frame)
            return
        self.seen.append(number)
        self._pass_on(number)

    def stop(self) -> None:
        """Ask the trainer to save and stop, on the launcher's own account: no signal was received."""
        self._send(signal.SIGTERM)

    def tell_new(self) -> None:
        """Say what comes of the signals since the last time: a handler may not print."""
        while self._num_told < len(self.seen):
            self._num_told += 1
            console.tell(answer_to(self.seen[: self._num_told]))

    def _end_early(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            raise StoppedEarlyError
        if callable(self._interrupt):
            self._interrupt(number, frame)

    def _pass_on(self, number: int) -> None:
        wanted = signal.SIGTERM if number in STOPS else number
        self._send(wanted if self.seen.count(signal.SIGINT) <= PATIENCE else signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.child is None:
            return
        if self.has_agent:
            # torchrun would end its workers within seconds of a signal of its own: a save may take longer.
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


def answer_to(seen: Sequence[int]) -> str:
    """What comes of the last of these signals, for whoever sent it."""
    name = "Ctrl-C" if seen[-1] == signal.SIGINT else signal_name(seen[-1])
    count = seen.count(signal.SIGINT)
    if count > PATIENCE:
        return f"{name}: the run is killed"
    told = f"{name}: the run ends its step, saves and stops"
    return f"{told}; one more kills it, and its steps since the last save" if count == PATIENCE else told


def _is_worker(candidate: psutil.Process) -> bool:
    """Whether it trains. One that has just ended says nothing, and must not hide the others."""
    try:
        return trainer_process.TRAINER_MODULE in candidate.cmdline()
    except psutil.Error:
        return False


@contextmanager
def forwarding() -> Iterator[Forwarder]:
    """Answer signals while the block runs; a closed terminal that is ignored (`nohup`) stays so."""
    forwarder = Forwarder()
    has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    heard = [number for number in (signal.SIGINT, *STOPS) if number != signal.SIGHUP or has_terminal]
    before = {number: signal.signal(number, forwarder) for number in heard}
    try:
        yield forwarder
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
