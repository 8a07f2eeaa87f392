"""Launchers as child processes: one for each point that trains at the same time as others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher.process.child_start import dying_with_parent
from launcher.process.signal_forwarding import Forwarder

LAUNCHER = (sys.executable, "-m", __name__.partition(".")[0])


class SiblingForwarder(Forwarder):
    """Forwarder of signals to several launchers, each of which counts the signals that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[subprocess.Popen[bytes]] = []
        self.keep_for_trainer(has_agent=False)

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """Forward signals to this child too, with the last one from before its start."""
        self.children.append(child)
        if self.seen:
            child.send_signal(self.seen[-1])

    def stop(self) -> None:
        """Ask all points to save and stop at the launcher's request."""
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        for child in self.children:
            child.send_signal(number)


def start(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], cores: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a launcher on some cores, in its own session: Ctrl-C reaches it once, through this launcher.

    If this launcher is killed, the kernel sends SIGTERM to the child, which saves and stops.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [*LAUNCHER, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_on_cores(cores, dying_with_parent(signal.SIGTERM, os.getpid())),
        )


def _on_cores(cores: Sequence[int], then: Callable[[], None]) -> Callable[[], None]:
    def prepare() -> None:
        os.sched_setaffinity(0, cores)
        then()

    return prepare
