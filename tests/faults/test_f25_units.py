"""F25: 21,504 MiB are 21.00 GiB wherever they are told, and memory that is in use already stops the run."""

from typing import Any

import pytest

from launcher.terminal.values import show_mib
from neobert.training.telemetry import memory
from tests.faults import machine

MIB = 2**20
ASKED = ("preflight", "-p", "a100-prod", "--level", "gpu", "--output", "out")


def reported() -> dict[str, Any]:
    """What the heartbeat tells of the incident's allocator."""
    return memory.gpu_fields(21_504 * MIB, 67_584 * MIB, 81_920 * MIB)


def is_right(fields: dict[str, Any]) -> bool:
    """Whether a reader gets 21.00 GiB of 80."""
    gib, mib = fields["gpu_mem_alloc_gib"], fields["gpu_mem_alloc_mib"]
    return f"{gib:.2f}" == "21.00" and mib == 21_504 and gib * 1024 == mib


def test_the_incident_s_figures():
    assert is_right(reported())
    assert show_mib(21_504) == "21.0 GiB"


@pytest.mark.parametrize(
    ("name", "value"), [("BYTES_PER_MIB", 10**6), ("MIB_PER_GIB", 1000), ("MIB_PER_GIB", 1)]
)
def test_a_mutant_that_labels_mib_as_gb_is_caught(name, value, monkeypatch):
    monkeypatch.setattr(memory, name, value)
    assert not is_right(reported())


def test_memory_that_is_in_use_already(ask, monkeypatch):
    machine.become(monkeypatch, machine.altered({"gpus.0.memory_used_mib": 21_504}))
    code, report = ask(*ASKED)
    assert code == 1
    (finding,) = [finding for finding in report["findings"] if finding["code"] == "GPU002"]
    assert "21,504 of 81,920 MiB are already in use" in finding["message"]
    machine.become(monkeypatch, machine.altered({}))
    assert ask(*ASKED)[0] == 0
