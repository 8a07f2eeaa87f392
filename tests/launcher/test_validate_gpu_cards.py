"""`validate-gpu` without a profile: the run of the visible GPU, by a pretended NVML."""

import json
from dataclasses import replace
from typing import Any

import pytest

from launcher.commands.validate_gpu import run_for_gpus
from launcher.probes import ranks, trials
from launcher.probes.probe import UnsupportedError
from tests.faults.machine import HEALTHY
from tests.launcher.test_preflight import A100

pytestmark = pytest.mark.child

RECORDED = json.loads(HEALTHY.read_text(encoding="utf-8"))
FULL = ("validate-gpu", "--full")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Answer for the children that would need a GPU; return what they were started for."""
    started: list[tuple[str, ...]] = []

    def measure(module: tuple[str, ...], limit_s: float, waiting: Any = ()) -> dict[str, Any]:
        started.append(module)
        return {"unsupported": "", "numerics": RECORDED["numerics"], "devices": RECORDED["devices"]}

    def no_ranks(_: Any) -> Any:
        raise UnsupportedError("one process in this test")

    monkeypatch.setattr(trials, "_run_probe_module", measure)
    monkeypatch.setattr(ranks, "probe_distributed", no_ranks)
    return started


def test_the_profile_of_the_cards_is_validated_and_named(command, bindings, measured):
    bindings("Memory.total = 80 * 2**30", "def nvmlDeviceGetCount(): return 2")
    answer = command(*FULL, "--output-format", "json")
    assert answer.json["profile"] == "2xa100-prod"
    assert answer.json["note"].endswith(": profile 2xa100-prod")
    assert answer.json["verdict"] in ("pass", "fail", "unknown"), "by what is installed here"
    assert any("--full" in module for module in measured)


def test_a_card_without_a_profile_gets_the_one_for_any_gpu(command, bindings, measured):
    bindings(
        'def nvmlDeviceGetName(handle): return "NVIDIA GeForce RTX 4090"',
        "def nvmlDeviceGetCudaComputeCapability(handle): return (8, 9)",
        "Memory.total = 24 * 2**30",
    )
    answer = command(*FULL)
    first_line = answer.out.splitlines()[0]
    assert first_line == "NVIDIA GeForce RTX 4090: no profile requires this GPU; validating gpu-smoke"
    assert answer.code == 0, answer.out
    assert measured


@pytest.mark.parametrize(
    ("name", "capability", "profile"), [(A100.name, (8, 0), "a100-prod"), ("Tesla T4", (7, 5), "gpu-smoke")]
)
def test_overrides_change_the_run_of_a_card(name, capability, profile):
    card = replace(A100, name=name, compute_capability=capability)
    run = run_for_gpus([card], ("seed=7", "model.kernel_backend=torch")).resolved
    assert run.profile is not None
    assert (run.profile.name, run.config.seed, run.config.model.kernel_backend) == (profile, 7, "torch")


@pytest.mark.parametrize("selection", [(), ("-p", "a100-prod"), ("--set", "seed=2")])
def test_without_a_gpu_one_line_says_so(selection, command, bindings, measured):
    bindings("def nvmlInit(): raise NVMLError('Driver Not Loaded')")
    answer = command(*FULL, *selection)
    assert (answer.code, answer.out, measured) == (3, "", [])
    assert len(answer.err.splitlines()) == 1
    assert answer.err.count("no NVIDIA GPU on this machine") == 1


def test_a_hidden_gpu_is_not_a_missing_driver(command, bindings, monkeypatch):
    bindings()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    answer = command(*FULL)
    assert (answer.code, len(answer.err.splitlines())) == (3, 1)
    assert "CUDA_VISIBLE_DEVICES" in answer.err
