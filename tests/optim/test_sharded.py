"""Weights spread over two ranks by FSDP2 get the update that they get whole."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parent / "sharded_ranks.py"


@pytest.fixture(scope="module")
def ended(warm_python):
    """Two ranks that say what they have done."""
    torchrun = (warm_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [*torchrun, str(SCRIPT)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": warm_python}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.parametrize("what", ["updates", "orthogonalizing_parts_differs", "clips"])
def test_two_ranks_do_what_one_does(ended, what):
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split().count(what) == 2
