"""Child that imports its packages while the launcher checks the run, and starts on its message."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from launcher.process import trainer_process
from launcher.process.child_start import RUN_WAITING
from launcher.process.process_tree import kill_family
from launcher.process.trainer_process import child_environment
from neobert.config.schema import RunConfig
from neobert.errors import ERROR_FILE_ENV


class WaitingChild:
    """A process of one module that has no arguments yet; until then it opens no file and uses no GPU.

    It ends when the launcher does. Only a thread that lives as long as the child may start it: the kernel
    sends PR_SET_PDEATHSIG at the end of the thread that started a child, not of its process. There is no
    `preexec_fn`: a signal that arrives at its fork raises in a hook of the fork, which drops the exception.
    """

    def __init__(self, module: str, packages: Sequence[str]) -> None:
        """Start the process, which imports `packages`."""
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

    def start(
        self,
        arguments: Sequence[str],
        log: Path,
        error_file: Path,
        keep_open: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes] | None:
        """Run the module with these arguments; None if the process has ended or was started before.

        Args:
            log: file for its output.
            keep_open: descriptors that the child gets a copy of.
            environment: variables to add to those of this process.
        """
        if self.is_started or self.process.poll() is not None:
            return None
        variables = {ERROR_FILE_ENV: str(error_file), **(environment or {})}
        message = json.dumps({"arguments": list(arguments), "environment": variables}).encode()
        with log.open("ab") as output:
            try:
                socket.send_fds(self._channel, [message], [output.fileno(), *keep_open])
            except OSError:  # it ended just now
                return None
        self.is_started = True
        return self.process

    def close(self) -> None:
        """End a process that was not started."""
        self._channel.close()
        if not self.is_started:
            kill_family(self.process)


@contextmanager
def waiting(module: str, config: RunConfig) -> Iterator[WaitingChild]:
    """Start a process of a module that trains, and end it with the block if it was not started."""
    compilers = trainer_process.COMPILER_PACKAGES if config.trainer.torch_compile else ()
    child = WaitingChild(module, (*trainer_process.TRAINER_PACKAGES, *compilers))
    try:
        yield child
    finally:
        child.close()
