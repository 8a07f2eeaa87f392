"""Ranks that wait for each other, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from neobert.errors import ProjectError
from neobert.parallel.world import refuse_foreign_strategies

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


@pytest.mark.e2e
def test_the_others_wait_for_the_data_longer_than_for_a_step():
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [*torchrun, "--no-python", sys.executable, "-c", RANK]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert sorted(ended.stdout.splitlines()) == ["through 0", "through 1"], ended.stderr


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"ACCELERATE_USE_FSDP": "true"}, "FSDP 1 by accelerate"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, "FSDP 2 by accelerate"),
        ({"ACCELERATE_USE_DEEPSPEED": "1"}, "DeepSpeed"),
        ({"ACCELERATE_USE_MEGATRON_LM": "True"}, "Megatron-LM"),
    ],
)
def test_what_the_environment_asks_for_is_refused(environment, named):
    with pytest.raises(ProjectError, match=named) as refusal:
        refuse_foreign_strategies(environment)
    assert refusal.value.code == "HST009"


def test_what_is_switched_off_is_not_refused():
    refuse_foreign_strategies({"ACCELERATE_USE_FSDP": "false", "FSDP_VERSION": "1"})
