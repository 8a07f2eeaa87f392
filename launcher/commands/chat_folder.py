"""Replies of a model folder, generated in a child process."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.process.json_child import started
from launcher.terminal.activity import activity
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError, read_error_file
from neobert.generation.request import Message, ReplyEnd, Sampling
from neobert.runfiles.model_folder import require_model_folder

MODULE = "neobert.generation"
HINT = "see the output above"


class FolderReplies:
    """A child process that has loaded the model, and replies until the `with` block ends."""

    def __init__(self, folder: Path, seed: int, device: str | None) -> None:
        require_model_folder(folder)
        self._request = {"folder": str(folder.absolute()), "seed": seed, "device": device, "dtype": None}
        self._open = ExitStack()

    def __enter__(self) -> FolderReplies:
        """Start the child, and wait until the model is loaded. Raises its `ProjectError`."""
        with ExitStack() as opening, activity("loading the model"):
            child = started(MODULE, self._request, stdin=subprocess.PIPE)
            self._child, self._error_file = opening.enter_context(child)
            self._next()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Let the child end: it reads to the end of its standard input."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()
        self._open.close()

    def reply(self, messages: list[Message], sampling: Sampling) -> Iterator[str | ReplyEnd]:
        """Yield the text of a reply in pieces, then its end; Ctrl-C ends it. Raises `ProjectError`."""
        assert self._child.stdin is not None
        request = {"messages": messages, "sampling": asdict(sampling)}
        with interrupts_passed_to(self._child):
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
            while "text" in (answer := self._next()):
                yield answer["text"]
        if "error" in answer:
            raise ProjectError("chat", answer["error"]["message"], answer["error"]["hint"])
        yield ReplyEnd(**answer["ending"])

    def _next(self) -> dict[str, Any]:
        """Return the child's next line. Raises its `ProjectError` if it ended."""
        assert self._child.stdout is not None
        if line := self._child.stdout.readline():
            return dict(json.loads(line))
        self._child.wait()
        if (error := read_error_file(self._error_file)) is not None:
            raise error
        message = f"{MODULE} ended with exit code {self._child.returncode}"
        raise ProjectError("child-failed", message, HINT, exit_code=EXIT_TRAINING_FAILED)


@contextmanager
def interrupts_passed_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass Ctrl-C to the child while the `with` block runs, wherever the block is."""
    before = signal.signal(signal.SIGINT, lambda *_: child.send_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
