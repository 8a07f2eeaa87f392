"""Ranks that wait for each other, as processes of their own."""

import os
import subprocess
import sys

import pytest

from neobert.parallel.world import reject_accelerate_settings
from tests.refusals import refusal_of

RANK = """
import time
from datetime import timedelta
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=5))
from neobert.parallel import World
from neobert.precision.recipe import FP32
world = World(FP32)
with world.main_first():
    if world.is_main:
        time.sleep(7)
say(world.rank, world.dp_rank, world.dp_size)
"""


# Two layers of 16 MiB: a bucket of DDP's own size is full after one of them.
BUCKETS = """
import torch
from torch import nn
from neobert.parallel import World
from neobert.precision.recipe import FP32
world = World(FP32)
for overlaps in (True, False):
    layers = nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.Linear(2048, 2048, bias=False))
    module = world.prepare(layers, overlaps_exchange=overlaps)
    for _ in range(3):  # after the first pass buckets are laid out anew, in the order of the gradients
        module(torch.full((1, 2048), world.rank + 1.0)).sum().backward()
        gradients = [each.grad.clone() for each in layers.parameters()]
        module.zero_grad()
    sizes = module._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    same = all(torch.equal(world.all_reduce_sum(each.clone()), 2 * each) for each in gradients)
    say(world.rank, overlaps, len(sizes.split(",")), same)
"""


# Words of two ranks in one pipe may mix.
SAY = """
import os
def say(*words):
    with open(f"said-{os.environ['RANK']}", "a") as file:
        print(*words, file=file)
"""


@pytest.fixture
def run_two(tmp_path):
    """Return a function that runs a script on two ranks, and what they said, or torchrun's errors."""

    def run(script):
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        command = [*torchrun, "--no-python", sys.executable, "-c", SAY + script]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        output = "".join(file.read_text(encoding="utf-8") for file in sorted(tmp_path.glob("said-*")))
        return output.splitlines() if not ended.returncode else ended.stderr

    return run


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_others_wait_for_the_data_longer_than_for_a_step(run_two):
    assert run_two(RANK) == ["0 0 2", "1 1 2"]


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_gradients_are_exchanged_beside_the_backward_pass_or_all_at_once_behind_it(run_two):
    assert run_two(BUCKETS) == ["0 True 2 True", "0 False 1 True", "1 True 2 True", "1 False 1 True"]


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"ACCELERATE_USE_FSDP": "true"}, "FSDP 1 by accelerate"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, "FSDP 2 by accelerate"),
        ({"ACCELERATE_USE_DEEPSPEED": "1"}, "DeepSpeed"),
        ({"ACCELERATE_USE_MEGATRON_LM": "True"}, "Megatron-LM"),
        ({"ACCELERATE_USE_CPU": "yes"}, "a CPU in place of the device"),
        ({"ACCELERATE_TORCH_DEVICE": "meta"}, "the device meta"),
    ],
)
def test_what_the_environment_asks_for_is_refused(environment, named):
    refusal_of(reject_accelerate_settings, "HST009", named, environment)


def test_what_is_switched_off_is_not_refused():
    off = {"ACCELERATE_USE_FSDP": "false", "FSDP_VERSION": "1", "ACCELERATE_TORCH_DEVICE": ""}
    reject_accelerate_settings(off)
