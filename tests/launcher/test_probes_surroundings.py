"""Probes of tracker, scheduler, data and GPUs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.probes import gpus, hub
from launcher.probes.data import probe_data
from launcher.probes.probe import IncompleteError, Subject, UnsupportedError
from launcher.probes.scheduler import parse_time_left, probe_scheduler
from launcher.probes.tracker import probe_tracker
from validators.facts import GpuFacts


def test_tracker_credentials(
    configured: Any, subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    assert not probe_tracker(subject).has_credentials
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password x\n", encoding="utf-8")
    (tmp_path / ".netrc").chmod(0o600)
    assert probe_tracker(subject).has_credentials
    assert not probe_tracker(subject).is_offline
    assert probe_tracker(configured({"wandb.mode": "offline"})).is_offline


def test_scheduler_from_the_environment() -> None:
    end = str(int(time.time()) + 3600)
    found = probe_scheduler({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": end, "SBATCH_SIGNAL": "B:TERM@120"})
    assert (found.name, found.job_id, found.signal_lead_s) == ("slurm", "7", 120.0)
    assert 3500 < (found.walltime_left_s or 0) <= 3600
    assert probe_scheduler({}).name == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784.0), ("02:03", 123.0), ("1:00:00", 3600.0), ("UNLIMITED", None), ("", None)],
)
def test_time_left(text: str, seconds: float | None) -> None:
    assert parse_time_left(text) == seconds


def test_data_that_is_there(configured: Any, subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("words", encoding="utf-8")
    (tmp_path / "text" / ".hidden").write_text("no", encoding="utf-8")
    found = probe_data(configured({"dataset.path": str(tmp_path / "text")}))
    assert (found.exists, found.is_readable, found.num_files, found.size_bytes) == (True, True, 1, 5)


def test_data_that_is_not_there(configured: Any, subject: Subject, tmp_path: Path) -> None:
    assert not probe_data(configured({"dataset.path": str(tmp_path / "absent")})).exists
    (tmp_path / "empty").mkdir()
    assert not probe_data(configured({"dataset.path": str(tmp_path / "empty")})).is_readable
    assert not probe_data(subject).exists


def test_data_that_cannot_be_read(configured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.txt"
    path.write_text("x", encoding="utf-8")
    subject = configured({"dataset.path": str(path)})
    monkeypatch.setattr(Path, "open", refuse)
    found = probe_data(subject)
    assert (found.exists, found.is_readable, found.reason) == (True, False, f"{path}: Permission denied")


def test_a_tokenizer_by_path(configured: Any, subject: Subject, tmp_path: Path) -> None:
    at = configured({"dataset.name": "builtin:python-docs", "tokenizer.path": str(tmp_path)})
    assert not probe_data(at).tokenizer_exists
    (tmp_path / "tokenizer.json").touch()
    assert probe_data(at).tokenizer_exists


def test_hub_names_are_looked_up_in_the_cache_first(tmp_path: Path) -> None:
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    with pytest.raises(IncompleteError, match="offline"):
        hub.is_available("datasets", "some/text", offline)
    (tmp_path / "hub" / "datasets--some--text" / "snapshots").mkdir(parents=True)
    assert hub.is_available("datasets", "some/text", offline)


def test_a_hub_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    nobody = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    with pytest.raises(IncompleteError, match="gave no answer"):
        hub.is_available("models", "some/model", nobody)


SMI_TABLE = """\
0, GPU-aaaa1111, NVIDIA A100-SXM4-80GB, 8.0, 81920, 4, 560.35
1, GPU-bbbb2222, NVIDIA A100-SXM4-80GB, 8.0, 81920, 60000, 560.35
"""


def test_the_tool_s_table_is_read() -> None:
    first, second = gpus.parse_smi(SMI_TABLE)
    assert (first.compute_capability, first.memory_total_mib, second.memory_used_mib) == (
        (8, 0),
        81920,
        60000,
    )
    assert gpus.parse_smi("No devices were found\n") == ()
    with pytest.raises(IncompleteError):
        gpus.parse_smi("garbage\n")


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("GPU-bbbb", [1]), ("0,7,1", [0]), ("-1", [])],
)
def test_visible_devices(wanted: str | None, indices: list[int]) -> None:
    environment = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    assert [gpu.index for gpu in gpus.visible(gpus.parse_smi(SMI_TABLE), environment)] == indices


def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A nvidia-smi of our own, and no bindings."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "_from_nvml", lambda: None)


def test_devices_from_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, monkeypatch, f"cat <<'T'\n{SMI_TABLE}T")
    assert [type(gpu) for gpu in gpus.probe_gpus()] == [GpuFacts, GpuFacts]


FAKE_BINDINGS = """
class NVMLError(Exception): pass
class Memory: total, used = 80 * 2**30, 5 * 2**20
def nvmlInit(): {init}
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): return Memory
def nvmlDeviceGetUUID(handle): return "GPU-1"
def nvmlDeviceGetName(handle): return "NVIDIA A100-SXM4-80GB"
def nvmlDeviceGetCudaComputeCapability(handle): return (8, 0)
def nvmlSystemGetDriverVersion(): return "560.35"
"""


def bindings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str) -> None:
    (tmp_path / "pynvml.py").write_text(FAKE_BINDINGS.format(init=init), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_devices_from_the_bindings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings(tmp_path, monkeypatch, "pass")
    (device,) = gpus.probe_gpus()
    assert device == GpuFacts(
        index=0,
        uuid="GPU-1",
        name="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        memory_total_mib=81920,
        memory_used_mib=5,
        driver_version="560.35",
    )


def test_bindings_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings(tmp_path, monkeypatch, "raise NVMLError('Driver Not Loaded')")
    with pytest.raises(UnsupportedError, match="NVML: Driver Not Loaded"):
        gpus.probe_gpus()


def test_bindings_that_hang_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings(tmp_path, monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(gpus, "TIMEOUT_S", 1.0)
    with pytest.raises(IncompleteError, match="was killed"):
        gpus.probe_gpus()


def test_a_driver_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.3)
    with pytest.raises(IncompleteError, match="was killed"):
        gpus.probe_gpus()


def test_a_driver_that_fails_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, monkeypatch, "echo 'Driver/library version mismatch' >&2; exit 18")
    with pytest.raises(UnsupportedError, match="version mismatch"):
        gpus.probe_gpus()


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_from_nvml", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="no NVIDIA driver"):
        gpus.probe_gpus()
