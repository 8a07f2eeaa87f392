"""Idle child process that imports its packages during the checks, and runs its module on request."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.process.child_start import RUN_WAITING
from launcher.process.process_tree import kill_tree
from launcher.process.trainer_process import child_environment
from neobert.errors import ERROR_FILE_ENV

WARM_UP_S = 60.0
"""A process that warms up for longer is replaced by a new one."""
POLL_S = 0.02


class WaitingChild:
    """Process that has imported the packages of a module and waits for the arguments to run it.

    Until then it opens no file and uses no GPU, except in a warm-up, which is requested only when it cannot
    change a measurement.

    The process ends when the launcher does. Only a thread that runs as long as the child may start it: the
    kernel sends PR_SET_PDEATHSIG at the end of the thread that started a child, not of its process.
    `preexec_fn` is not used: an exception raised by a signal during its fork is dropped by the fork's hooks.
    """

    def __init__(self, module: str, packages: Sequence[str]) -> None:
        """Start the process, which imports `packages`."""
        self.module = module
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *RUN_WAITING, str(theirs.fileno()), module, *packages],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment(Path(os.devnull)),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self.is_started = False
        self._warm_up_until_s: float | None = None

    def warm_up(self, module: str, arguments: Sequence[str]) -> None:
        """Run `main(arguments)` of a module in the process, which waits again afterwards.

        A process whose warm-up fails ends, and `start` returns None.
        """
        with Path(os.devnull).open("ab") as output, suppress(OSError):
            self._send({"warm_up": module, "arguments": list(arguments), "environment": {}}, output.fileno())
            self._warm_up_until_s = time.monotonic() + WARM_UP_S

    def _send(self, order: Mapping[str, Any], *files: int) -> None:
        socket.send_fds(self._channel, [json.dumps(order).encode()], files)

    def is_warming_up(self) -> bool:
        """Return whether a warm-up is still running; kills the process after `WARM_UP_S`, or if it failed."""
        if self._warm_up_until_s is None:
            return False
        has_ended = False
        with suppress(OSError):
            try:
                has_ended = bool(self._channel.recv(1, socket.MSG_DONTWAIT))
            except BlockingIOError:
                if time.monotonic() < self._warm_up_until_s:
                    return True
        self._warm_up_until_s = None
        if not has_ended:
            kill_tree(self.process)
        return False

    def wait_for_warm_up(self) -> None:
        """Wait until no warm-up is running, at most `WARM_UP_S`."""
        while self.is_warming_up():
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        self.wait_for_warm_up()
        return not self.is_started and self.process.poll() is None

    def start(
        self,
        arguments: Sequence[str],
        log: Path,
        error_file: Path,
        keep_open: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes] | None:
        """Run the module and return the process, or None if the process has ended or was started before.

        Args:
            log: file for standard output and standard error.
            keep_open: descriptors that the child gets a copy of.
            environment: variables to add to this process's environment.
        """
        if not self._is_ready():
            return None
        variables = {ERROR_FILE_ENV: str(error_file), **(environment or {})}
        order = {"arguments": list(arguments), "environment": variables}
        with log.open("ab") as output:
            try:
                self._send(order, output.fileno(), *keep_open)
            except OSError:  # it ended just now
                return None
        self.is_started = True
        return self.process

    def close(self) -> None:
        """Close the socket, and kill the process if it was not started."""
        self._channel.close()
        if not self.is_started:
            kill_tree(self.process)


@contextmanager
def start_waiting_child(module: str, packages: Sequence[str]) -> Iterator[WaitingChild]:
    """Start an idle process that will run `module`; kill the process after the `with` block if unused."""
    child = WaitingChild(module, packages)
    try:
        yield child
    finally:
        child.close()
