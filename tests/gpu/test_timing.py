"""Times on a CUDA device: nothing waits for them, parts sum to the step, and the speed is the true one."""

import time

import pytest
import torch

from neobert.bench.arm import Arm
from neobert.bench.device import measure_peak
from neobert.config import from_dict
from neobert.training.loop.hooks import collect_between_steps
from neobert.training.loop.steps import run_step
from neobert.training.telemetry.stopwatch import BREAKDOWN, Stopwatch

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerator"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler and of foreign kernels
]
CUDA = torch.device("cuda")


def config_of(rows):
    return from_dict(
        {
            "model": {"num_hidden_layers": 12, "kernel_backend": "triton"},
            "dataset": {"max_seq_length": 1024},
            "trainer": {"per_device_train_batch_size": rows, "logging_steps": 5, "timing_breakdown": True},
        }
    )


@pytest.fixture
def arm(tmp_path):
    arm = Arm(config_of(16), "synthetic", tmp_path)
    with collect_between_steps():
        arm.warm_up(6)
        yield arm
    arm.close()


def test_timing_a_step_never_waits_for_the_device(arm, waiting_is_an_error):
    with waiting_is_an_error():
        for _ in range(3):
            run_step(arm.trainer)


def test_parts_sum_to_the_step_and_the_step_is_the_true_one(arm):
    """A host that is ahead waits for the device in a hook, at every line: that wait is the steps' time."""
    turns = [arm.turn(20) for _ in range(2)]
    finished = arm.finish()
    true_ms = 1000 * sum(turn["seconds"] for turn in turns) / sum(turn["steps"] for turn in turns)
    means = finished["means"]
    assert finished["parts_of_step"] == pytest.approx(1, abs=0.02)
    assert means["time/step_ms"] == pytest.approx(true_ms, rel=0.03)
    assert means["time/other_ms"] < 0.05 * means["time/step_ms"]
    passes = means["time/forward_ms"], means["time/backward_ms"]  # a late host makes either the longer one
    assert min(passes) > means["time/clip_ms"] > 0


def test_a_wait_of_the_host_that_the_device_does_not_notice_costs_nothing():
    stopwatch = Stopwatch(CUDA, BREAKDOWN)
    torch.cuda.synchronize()
    with stopwatch.step():
        torch.cuda._sleep(2_000_000_000)  # about a second of work in the queue
        with stopwatch.section("data_wait"):
            time.sleep(0.2)
    torch.cuda.synchronize()
    with stopwatch.step(), stopwatch.section("data_wait"):
        time.sleep(0.2)  # now it has nothing to do
    torch.cuda.synchronize()
    hidden, noticed = (step["data_wait"] for step in stopwatch.read().steps)
    assert hidden < 5
    assert noticed > 190


@pytest.mark.parametrize(("host_s", "kernel_cycles", "share"), [(0.02, 1_000, 1.0), (0.0, 50_000_000, 0.0)])
def test_a_device_that_waits_for_its_host_is_told_from_one_that_lags(host_s, kernel_cycles, share):
    stopwatch = Stopwatch(CUDA)
    for _ in range(2):
        for _ in range(5):
            with stopwatch.step():
                time.sleep(host_s)
                torch.cuda._sleep(kernel_cycles)
                stopwatch.mark_backward_launched()
        torch.cuda.synchronize()
        times = stopwatch.read()
    assert times.host_bound_share == share


@pytest.mark.parametrize(("rows", "share"), [(2, 1.0), (96, 0.0)])
def test_larger_microbatches_relieve_the_host(tmp_path, rows, share):
    """Launches of an eager step take some 30 ms, kernels about 25 ms for 16 rows of this model."""
    with collect_between_steps():
        arm = Arm(config_of(rows), "synthetic", tmp_path)
        arm.warm_up(6)
        arm.turn(20)
        means = arm.finish()["means"]
        arm.close()
    assert means["perf/host_bound_share"] == pytest.approx(share, abs=0.2)


def test_the_peak_is_one_that_the_card_can_reach():
    assert 1e13 < measure_peak(CUDA, torch.bfloat16) < 5e15
