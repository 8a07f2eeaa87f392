"""A terminal, a file system or a clock that changes while a run trains: the run ends as documented."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.conftest import _away_from_the_repository, run_child, start_child

__all__ = ["_away_from_the_repository", "run_child", "start_child"]

pytestmark = pytest.mark.e2e

TRAIN = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=run")
PATIENCE_S = 60


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that holds a page, and whose reader takes nothing."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    yield write
    os.close(write)
    os.close(read)


def test_a_reader_that_takes_nothing_delays_neither_a_restart_nor_the_end(
    start_child: Callable[..., Any], unread: int
) -> None:
    child = start_child(*TRAIN, fake="chatter", stdout=unread, stderr=unread)
    try:
        assert child.wait(PATIENCE_S) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("the launcher waits for its reader")
    (restart,) = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["restarts"]
    assert restart["why"].startswith("rank 0 was killed by SIGKILL")
