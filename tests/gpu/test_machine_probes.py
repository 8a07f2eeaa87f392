"""The probes of a real machine with GPUs: what they find agrees with torch, and a planted tenant is found."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.probes import gpus, ranks, trials
from launcher.probes.probe import Subject, UnsupportedError
from launcher.probes.ranks import probe_distributed
from neobert.config import replace as with_value
from neobert.config.schema import RunConfig
from profiles.registry import ResolvedRun, resolve_run
from validators.core import judge
from validators.facts import NO_FACTS, Facts
from validators.finding import CheckResult, Level, Status
from validators.planning import plan_run

MIB = 2**20
TENANT = """
import sys, torch
held = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.read()
"""


def subject(tmp_path: Path, processes: int = 1) -> Subject:
    config = with_value(RunConfig(), "distributed.nproc_per_node", processes)
    return Subject(config, tmp_path / "run", tmp_path)


def judged(run: ResolvedRun, facts: Facts, *levels: Level) -> dict[str, CheckResult]:
    _, checks = judge(run, plan_run(run), facts, levels)
    return {check.id: check for check in checks}


def test_the_devices_are_those_that_torch_sees() -> None:
    found = gpus.probe_gpus()
    assert len(found) == torch.cuda.device_count()
    for number, gpu in enumerate(found):
        properties = torch.cuda.get_device_properties(number)
        assert gpu.name == properties.name
        assert gpu.compute_capability == (properties.major, properties.minor)
        assert gpu.memory_total_mib == pytest.approx(properties.total_memory / MIB, rel=0.05)
        assert str(properties.uuid) in gpu.uuid


def test_health_is_told_or_said_to_be_unsupported() -> None:
    try:
        found = gpus.probe_gpu_health()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert len(found) == torch.cuda.device_count()
    assert all(gpu.recovery_action in (None, "none") for gpu in found), found


def test_imports_and_a_product_on_every_device(tmp_path: Path) -> None:
    found = trials.probe_imports(subject(tmp_path, torch.cuda.device_count()))
    assert (found.device, found.num_devices) == ("cuda", torch.cuda.device_count())
    assert (found.failed, found.kernel_error) == ({}, "")
    assert found.cuda_version == torch.version.cuda


def test_all_devices_under_load(tmp_path: Path) -> None:
    try:
        found = trials.probe_gpu_load(subject(tmp_path, torch.cuda.device_count()))
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert len(found) == torch.cuda.device_count()
    assert all(gpu.num_samples > 5 for gpu in found), found


@pytest.fixture
def tenant() -> Iterator[None]:
    """Somebody else, with 8 GiB of the first device."""
    child = subprocess.Popen([sys.executable, "-c", TENANT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"holds\n"
    yield
    child.communicate()


def test_a_tenant_is_found(tenant: None) -> None:
    run = resolve_run("gpu-smoke")
    check = judged(run, replace(NO_FACTS, gpus=gpus.probe_gpus()), Level.GPU)["GPU002"]
    assert check.status is Status.FAIL
    assert "MiB are already in use" in check.message


@pytest.mark.skipif(
    os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1", reason="other workers hold memory of the GPU"
)
def test_control_without_a_tenant() -> None:
    """This process holds a context of its own, which is less than two hundredths of a large device."""
    run = resolve_run("gpu-smoke")
    torch.cuda.empty_cache()  # of the tests before
    facts = replace(NO_FACTS, gpus=tuple(replace(gpu, processes=()) for gpu in gpus.probe_gpus()))
    assert judged(run, facts, Level.GPU)["GPU002"].status is Status.PASS


@pytest.mark.parametrize("mode", ["replicated", "fsdp2"])
def test_the_ranks_of_this_node_agree(tmp_path: Path, mode: str) -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs two CUDA devices")
    run = resolve_run(
        "h200-prod", overrides=[f"distributed.nproc_per_node={count}", f"distributed.mode={mode}"]
    )
    found = probe_distributed(Subject(run.config, tmp_path / "run", tmp_path))
    checks = judged(run, replace(NO_FACTS, distributed=found), Level.DISTRIBUTED)
    for code in ("DST001", "DST002", "DST004", "DST005", "DST006"):
        assert checks[code].status is Status.PASS, checks[code].message
    assert found.backend == "nccl"
    assert max(case.num_elements for case in found.collectives) == 1 << 26
    print(f"{(found.bus_bytes_per_s or 0) / 1e9:.1f} GB/s, peer access {found.has_peer_access}")


def test_a_wrong_value_on_nccl_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    monkeypatch.setattr(ranks, "MODULE", "tests.faults.faulty_rank")
    monkeypatch.setenv("FAULT", "wrong_value")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{':'.join(sys.path)}")
    run = resolve_run("h200-prod", overrides=["distributed.nproc_per_node=2"])
    found = probe_distributed(Subject(run.config, tmp_path / "run", tmp_path))
    check = judged(run, replace(NO_FACTS, distributed=found), Level.DISTRIBUTED)["DST002"]
    assert check.status is Status.FAIL
    assert "the contribution of rank 1 is received incorrectly" in check.message
