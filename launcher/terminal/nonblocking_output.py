"""Output that never blocks on a slow reader: a bounded queue, and a thread that writes to the descriptor."""

from __future__ import annotations

import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import write
from typing import TextIO, cast

from launcher.terminal import console
from neobert.plurals import counted

LIMIT_BYTES = 64 * 1024
# `write` to a blocking pipe returns after all is written: small pieces show whether the reader makes
# progress.
PIECE_BYTES = 4096
# Time that the end of a launch waits for a reader that does not read.
TIMEOUT_S = 2.0


class NonblockingStream:
    """Text stream whose writes return at once; a full queue drops its oldest texts.

    A thread writes to the descriptor itself: a stream's own buffer is locked during a write, and the
    interpreter could then not exit. An error of the thread is raised by the next `write`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._descriptor = stream, stream.fileno()
        self.encoding, self.errors = stream.encoding, stream.errors
        self._unflushed = ""
        self._queue: deque[bytes] = deque()
        self._num_pieces, self._num_dropped = 0, 0
        self._is_writing, self._is_over = False, False
        self._error: OSError | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._write_until_end, name="output", daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor that the thread writes to."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the underlying stream is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Buffer text for the next `flush`. Raises the `OSError` of an earlier text, once."""
        with self._changed:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._unflushed += text
        return len(text)

    def flush(self) -> None:
        """Queue the text written since the last flush; a full queue drops its oldest texts as a whole."""
        with self._changed:
            text, self._unflushed = self._unflushed, ""
            if text:
                self._queue.append(text.encode(self.encoding, self.errors or "strict"))
                self._drop_oldest()
                self._changed.notify_all()

    def finish(self) -> OSError | None:
        """Flush, and wait for the reader at most `TIMEOUT_S` per piece; return the last error, or None."""
        self.flush()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            while self._is_busy() and self._has_written_more(self._num_pieces):
                pass
            return self._error

    def _drop_oldest(self) -> None:
        while len(self._queue) > 1 and sum(map(len, self._queue)) > LIMIT_BYTES:
            self._num_dropped += self._queue.popleft().count(b"\n")

    def _is_busy(self) -> bool:
        return self._is_writing or bool(self._queue)

    def _has_written_more(self, num_pieces: int) -> bool:
        return self._changed.wait_for(lambda: self._num_pieces > num_pieces or not self._is_busy(), TIMEOUT_S)

    def _write_until_end(self) -> None:
        while text := self._next_bytes():
            try:
                self._write_all(text)
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._queue.clear()

    def _next_bytes(self) -> bytes:
        """Wait for the next bytes to write; return b"" at the end.

        After lines were dropped, the next bytes are a note with their number.
        """
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._is_over)
            self._is_writing = bool(self._queue)
            if self._num_dropped:
                count, self._num_dropped = self._num_dropped, 0
                return f"[{counted(count, 'line')} dropped while the output was blocked]\n".encode()
            return self._queue.popleft() if self._queue else b""

    def _write_all(self, text: bytes) -> None:
        left = memoryview(text)
        while left:
            try:
                left = left[write(self._descriptor, left[:PIECE_BYTES]) :]
            except BlockingIOError:  # another process that shares this pipe made it non-blocking
                select.select([], [self._descriptor], [])
            with self._changed:
                self._num_pieces += 1
                self._changed.notify_all()


@contextmanager
def nonblocking_streams() -> Iterator[None]:
    """Route stdout and stderr through non-blocking streams inside the `with` block.

    Raises ProjectError if stdout could not be written; a reader that closed its pipe is not an error.
    """
    before = sys.stdout, sys.stderr
    streams = [_open_nonblocking(stream) for stream in before]
    sys.stdout, sys.stderr = (cast("TextIO", new or old) for new, old in zip(streams, before, strict=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        errors = [stream.finish() if stream else None for stream in streams]
    if errors[0] is not None and not isinstance(errors[0], BrokenPipeError):
        raise console.stdout_error(errors[0])


def _open_nonblocking(stream: TextIO) -> NonblockingStream | None:
    """Return a non-blocking stream, or None for a stream without a descriptor, such as text in memory."""
    with suppress(OSError):
        return NonblockingStream(stream)
    return None
