"""Output to readers that take nothing, that are slow, or that went away."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest

from launcher.terminal import console, nonblocking_output
from launcher.terminal.nonblocking_output import LIMIT_BYTES, NonblockingStream, nonblocking_streams
from neobert.errors import ProjectError

LINE = "x" * 99 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe as its reader's descriptor and its writer's stream."""
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        yield read, stream
        with suppress(OSError):  # a writer that is blocked ends with that
            os.close(read)


def collect(read: int) -> tuple[threading.Thread, list[bytes]]:
    """Read to the end in a thread."""
    pieces: list[bytes] = []

    def run() -> None:
        while piece := os.read(read, 1 << 16):
            pieces.append(piece)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, pieces


def test_a_reader_that_stopped_gets_the_newest_lines_and_the_number_of_the_others(pipe):
    read, stream = pipe
    unread = NonblockingStream(stream)
    for number in range(4 * LIMIT_BYTES // len(LINE)):
        unread.write(f"{number:8}{LINE}")
        unread.flush()
    thread, pieces = collect(read)
    assert unread.finish() is None
    stream.close()
    thread.join()
    shown = b"".join(pieces).decode()
    notes = re.findall(r"^\[([\d,]+) lines? dropped while the output was blocked\]$", shown, re.M)
    num_dropped = sum(int(number.replace(",", "")) for number in notes)
    numbers = [int(each[:8]) for each in shown.splitlines() if not each.startswith("[")]
    assert num_dropped > 0
    assert numbers == sorted(numbers)
    assert numbers[-1] + 1 == len(numbers) + num_dropped == 4 * LIMIT_BYTES // len(LINE)


def test_the_end_waits_a_bounded_time_and_loses_nothing_else(pipe, monkeypatch):
    monkeypatch.setattr(nonblocking_output, "TIMEOUT_S", 0.1)
    monkeypatch.setattr("sys.stdout", pipe[1])
    with nonblocking_streams():
        console.write(LINE * 1000)
    assert os.read(pipe[0], 4).decode() == "xxxx"


def test_another_s_non_blocking_pipe_gets_everything(pipe):
    read, stream = pipe
    os.set_blocking(stream.fileno(), False)
    busy = NonblockingStream(stream)
    busy.write(LINE * 1000)
    busy.flush()
    thread, pieces = collect(read)
    assert busy.finish() is None
    stream.close()
    thread.join()
    assert b"".join(pieces).decode() == LINE * 1000


def test_a_reader_that_went_away_is_no_error(pipe, monkeypatch):
    os.close(pipe[0])
    monkeypatch.setattr("sys.stdout", pipe[1])
    with nonblocking_streams():
        console.write(LINE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_of_the_next_line_or_of_the_end(monkeypatch):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(ProjectError, match="No space left on device"), nonblocking_streams():
            console.write(LINE)
