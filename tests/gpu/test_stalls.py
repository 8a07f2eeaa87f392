"""Two GPUs, one of which hangs or is lost: named, dumped, begun again, with NCCL waiting on the device."""

import json

import pytest
import torch

from launcher.rundir.records import read_json
from tests.faults.conftest import corpus, launch, make_run
from tests.training.conftest import read_lines

__all__ = ["corpus", "launch", "make_run"]

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

SECTIONS = {
    "model": {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 768,
        "max_position_embeddings": 256,
    },
    "dataset": {"max_seq_length": 256},
    "trainer": {"mixed_precision": "bf16", "max_steps": 40, "save_steps": 5},
}
# NCCL has to give up nothing by itself within these: its own limit is ten minutes.
LIMITS = {
    "step_limit_s": 10.0,
    "data_wait_limit_s": 10.0,
    # The first evaluation has kernels to compile, between batches that take no time.
    "evaluation_limit_s": 120.0,
    "learned_floor_s": 120.0,
    "grace_s": 1.0,
}


def sections(mode, compiled):
    trainer = {**SECTIONS["trainer"], "torch_compile": compiled}
    return {**SECTIONS, "trainer": trainer, "distributed": {"mode": mode}}


def history(run_dir):
    return [line["step"] for line in read_lines(run_dir / "metrics.jsonl")]


@pytest.mark.parametrize("mode", ["replicated", "fsdp2"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_rank_that_hangs_is_named_and_the_run_goes_on(launch, mode, compiled):
    fault = {"kind": "interpreter", "step": 18, "rank": 1}
    run_dir, ending = launch(fault, ranks=2, sections=sections(mode, compiled), **LIMITS)
    log = (run_dir / "logs" / "rank_0.log").read_text(encoding="utf-8")[-3000:]
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 1), log
    (stalled,) = read_json(run_dir / "manifest.json")["restarts"]
    assert stalled["why"].startswith("rank 1 made no progress after step 17 for"), json.dumps(stalled)
    assert "hold_the_interpreter" in (run_dir / "logs" / "rank_1.stacks").read_text(encoding="utf-8")
    assert (run_dir / "logs" / "rank_0.stacks").stat().st_size > 0
    assert history(run_dir) == list(range(41))


@pytest.mark.parametrize("mode", ["replicated", "fsdp2"])
def test_a_rank_that_is_lost_is_named_and_the_run_goes_on(launch, mode):
    """The other one waits in NCCL and hears nothing; torchrun kills it after half a minute."""
    fault = {"kind": "killed", "step": 30, "rank": 1}
    limits = LIMITS | {"step_limit_s": 90.0, "data_wait_limit_s": 90.0}
    run_dir, ending = launch(fault, ranks=2, sections=sections(mode, compiled=False), **limits)
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 1)
    (lost,) = read_json(run_dir / "manifest.json")["restarts"]
    assert lost["why"].startswith("rank 1 was killed by SIGKILL"), json.dumps(lost)
    assert history(run_dir) == list(range(41))


def test_a_stopped_rank_is_named_and_the_run_goes_on(launch):
    run_dir, ending = launch({"kind": "stopped", "step": 18, "rank": 1}, ranks=2, sections=SECTIONS, **LIMITS)
    assert (ending.status, ending.exit_code, ending.restarts) == ("finished", 0, 1)
    (stalled,) = read_json(run_dir / "manifest.json")["restarts"]
    assert stalled["why"].startswith("rank 1 made no progress after step 17 for")
    assert "wrote no heartbeats" in stalled["why"]
    assert history(run_dir) == list(range(41))


def test_a_loss_that_is_no_number_on_one_gpu_stops_both(launch):
    fault = {"kind": "nan", "step": 18, "rank": 1}
    run_dir, ending = launch(fault, fault, ranks=2, sections=SECTIONS, **LIMITS)
    assert (ending.exit_code, ending.restarts) == (93, 1)
    for rank in range(2):
        assert read_json(run_dir / f"nonfinite_rank{rank}.json")["step"] == 18


def test_without_a_fault_the_same_limits_end_nothing(launch):
    run_dir, ending = launch(ranks=2, sections=SECTIONS, **LIMITS)
    assert (ending.status, ending.restarts) == ("finished", 0)
    assert history(run_dir) == list(range(41))
