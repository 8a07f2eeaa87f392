"""What a process takes of its device beside the allocator, by drivers that tell more or less. No GPU."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from neobert.rehearsal.measurements import gpu_context_mib, process_gpu_bytes

MIB = 2**20
DEVICE = torch.device("cuda", 0)


class NVMLError(Exception):
    """The driver said no."""


def refuse(_):
    raise NVMLError


@pytest.fixture
def driver(monkeypatch):
    """A device of 1,000 MiB, 400 of them free, of which the allocator has reserved 250; and its driver."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (400 * MIB, 1_000 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 250 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1"))

    def install(*processes, running=None):
        found = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]
        module = SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByUUID={"GPU-1": 1}.__getitem__,
            nvmlDeviceGetComputeRunningProcesses=running or {1: found}.__getitem__,
            __spec__=SimpleNamespace(),
        )
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return install


def test_what_others_take_is_left_out_where_the_driver_tells_it_apart(driver):
    driver((1, 200 * MIB), (os.getpid(), 400 * MIB))
    assert gpu_context_mib(DEVICE) == (150, True)


@pytest.mark.parametrize("processes", [[], [(1, 200 * MIB)], [(os.getpid(), None)]])
def test_where_the_driver_does_not_say_all_of_the_device_counts(driver, processes):
    driver(*processes)
    assert gpu_context_mib(DEVICE) == (350, False)


def test_a_driver_that_refuses_says_nothing(driver):
    driver(running=refuse)
    assert process_gpu_bytes("GPU-1") is None


def test_without_bindings_nobody_is_asked(driver, monkeypatch):
    driver((os.getpid(), 400 * MIB))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert process_gpu_bytes("GPU-1") is None
