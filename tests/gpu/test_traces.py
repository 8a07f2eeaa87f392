"""Traces on a card: kernels are in the profile, allocations in the snapshot, and recording ends."""

import json
import pickle

import pytest
import torch

from neobert.training.telemetry.memory import peak_percent
from neobert.training.telemetry.traces import KernelRecorder, MemoryRecorder

CUDA = torch.device("cuda", 0)


def test_a_profile_has_the_kernels_of_the_device(tmp_path):
    recorder = KernelRecorder(CUDA)
    recorder.begin()
    torch.ones(64, 64, device=CUDA) @ torch.ones(64, 64, device=CUDA)
    torch.cuda.synchronize()
    recorder.end(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {"cpu_op", "kernel"} <= {event.get("cat") for event in events}


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_snapshot_has_the_allocations_of_its_step_only(tmp_path, is_kept):
    path = tmp_path / "memory.pickle"
    recorder = MemoryRecorder()
    recorder.begin()
    held = torch.ones(3 * 2**20, dtype=torch.uint8, device=CUDA)
    recorder.end(path if is_kept else None)
    later = torch.ones(5 * 2**20, dtype=torch.uint8, device=CUDA)
    assert path.exists() is is_kept
    if is_kept:
        traced = pickle.loads(path.read_bytes())["device_traces"][CUDA.index]
        assert held.numel() in [event["size"] for event in traced if event["action"] == "alloc"]
    entries = torch.cuda.memory._snapshot()["device_traces"][CUDA.index]
    assert later.numel() not in [event["size"] for event in entries]


def test_the_peak_is_a_share_of_the_card():
    held = torch.ones(2**28, dtype=torch.uint8, device=CUDA)
    total = torch.cuda.get_device_properties(CUDA).total_memory
    assert 100 * held.numel() / total <= peak_percent(CUDA) <= 100
