"""Weights spread over two ranks by FSDP2 get the update that they get whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parent / "sharded_ranks.py"


@pytest.mark.parametrize("what", ["updates", "control", "clips"])
def test_two_ranks_do_what_one_does(what):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [*torchrun, str(SCRIPT), what]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["done", "done"]
