"""Worker processes end with the process that started them, and with the block that failed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from neobert.worker_pool import worker_pool

pytestmark = pytest.mark.e2e

LONGER_THAN_ANY_TEST_S = 3600
PATIENCE_S = 120
PROGRAM = """
import multiprocessing, time
from neobert.worker_pool import worker_pool
with worker_pool(2, int) as pool:
    busy = [pool.submit(time.sleep, 3600) for _ in range(2)]
    print(*(each.pid for each in multiprocessing.active_children()), flush=True)
    time.sleep(3600)
"""


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_workers_end_with_a_process_that_is_killed():
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(pid) for pid in child.stdout.readline().split()]
        assert len(workers) == 2
    finally:
        child.kill()
        child.communicate()
    deadline_s = time.monotonic() + PATIENCE_S
    while any(map(is_running, workers)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_block_that_fails_does_not_wait_for_its_workers(error):
    with pytest.raises(error):
        fail_beside_a_worker(error)
    assert not multiprocessing.active_children()


def fail_beside_a_worker(error: type[BaseException]) -> None:
    with worker_pool(2, int) as pool:
        pool.submit(time.sleep, LONGER_THAN_ANY_TEST_S)
        assert pool.submit(abs, -1).result() == 1
        raise error


def test_workers_of_a_block_that_ends_finish_their_work():
    with worker_pool(1, int) as pool:
        results = [pool.submit(abs, -number) for number in range(5)]
    assert [each.result() for each in results] == list(range(5))
