"""Ranks that wait for each other, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

RANK = """
import time
from datetime import timedelta
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=1))
from neobert.parallel import World
world = World("no")
with world.main_first():
    if world.is_main:
        time.sleep(2.5)
print("through", world.rank)
"""


def test_the_others_wait_for_the_data_longer_than_for_a_step():
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [*torchrun, "--no-python", sys.executable, "-c", RANK]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert sorted(ended.stdout.splitlines()) == ["through 0", "through 1"], ended.stderr
