"""Probes of the GPUs: the driver's bindings, the kernel's log, a load. No GPU is needed."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.probes import gpus, trials
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from validators.facts_gpu import GpuFacts, GpuHealthFacts, GpuProcessFacts, XidFacts

pytestmark = pytest.mark.child

A100 = GpuFacts(
    index=0,
    uuid="GPU-1",
    name="NVIDIA A100-SXM4-80GB",
    compute_capability=(8, 0),
    memory_total_mib=81920,
    memory_used_mib=5,
    driver_version="560.35",
    pci_bus_id="00000000:3B:00.0",
    is_mig_enabled=False,
    processes=(),
)


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("GPU-bbbb", [1]), ("0,7,1", [0]), ("-1", [])],
)
def test_visible_devices(wanted, indices):
    environment = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    two = [
        replace(A100, index=index, uuid=uuid) for index, uuid in enumerate(("GPU-aaaa1111", "GPU-bbbb2222"))
    ]
    assert [gpu.index for gpu in gpus.visible_devices(two, environment)] == indices


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a program of our own before all others."""

    def make(name: str, script: str) -> None:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return make


def test_devices_from_the_bindings(bindings):
    bindings()
    assert gpus.probe_gpus() == (A100,)


def test_a_foreign_process_is_named(bindings):
    bindings("PROCESSES = [Process(4711, 20 * 2**30), Process(4712, None)]")
    (device,) = gpus.probe_gpus()
    assert device.processes == (
        GpuProcessFacts(pid=4711, name="python", memory_mib=20480),
        GpuProcessFacts(pid=4712, name="python", memory_mib=None),
    )


def test_what_a_driver_will_not_tell_of_processes_is_none(bindings):
    bindings("def nvmlDeviceGetComputeRunningProcesses(handle): raise NVMLError('no permission')")
    (device,) = gpus.probe_gpus()
    assert device.processes is None


def test_health_from_the_bindings(bindings):
    bindings()
    (health,) = gpus.probe_gpu_health()
    assert health == GpuHealthFacts(
        index=0,
        uuid="GPU-1",
        is_ecc_enabled=True,
        uncorrected_errors=0,
        retired_pages=None,
        is_retirement_pending=None,
        is_remap_pending=False,
        has_remap_failed=False,
        recovery_action="none",
        throttle_reasons=("sw_power_cap",),
        pcie_generation=4,
        pcie_generation_max=4,
        pcie_width=16,
        pcie_width_max=16,
        num_nvlinks=12,
    )


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("def nvmlDeviceGetTotalEccErrors(*_): return 3", "uncorrected_errors", 3),
        ("def nvmlDeviceGetRemappedRows(handle): return (0, 1, 1, 0)", "is_remap_pending", True),
        ("def nvmlDeviceGetRemappedRows(handle): return (0, 1, 0, 1)", "has_remap_failed", True),
        ("def nvmlDeviceGetRetiredPagesPendingStatus(handle): return 1", "is_retirement_pending", True),
        ("def nvmlDeviceGetRetiredPages(handle, cause): return [1, 2]", "retired_pages", 4),
        ("ACTION = 2", "recovery_action", "node_reboot"),
        ("ACTION = 9", "recovery_action", "action_9"),
        ("def nvmlDeviceGetNvLinkState(handle, link): raise NVMLError_NotSupported()", "num_nvlinks", None),
        ("def nvmlDeviceGetCurrentClocksEventReasons(handle): return 0x48",
         "throttle_reasons", ("hw_slowdown", "hw_thermal_slowdown")),
    ],
)  # fmt: skip
def test_each_sign_of_bad_health_is_read(bindings, line, field, value):
    bindings(line)
    (health,) = gpus.probe_gpu_health()
    assert getattr(health, field) == value


def test_health_that_cannot_be_read_is_no_health(bindings):
    bindings("def nvmlDeviceGetEccMode(handle): raise NVMLError('GPU is lost')")
    with pytest.raises(UnsupportedError, match="GPU is lost"):
        gpus.probe_gpu_health()


def test_bindings_without_a_driver(bindings):
    bindings("def nvmlInit(): raise NVMLError('Driver Not Loaded')")
    with pytest.raises(UnsupportedError, match=r"no NVIDIA GPU on this machine \(Driver Not Loaded\)"):
        gpus.probe_gpus()


def test_bindings_that_hang_are_killed(bindings, monkeypatch):
    bindings("def nvmlInit(): import time; time.sleep(60)")
    monkeypatch.setattr(gpus, "TIMEOUT_S", 1.0)
    with pytest.raises(TimedOutError, match="was killed"):
        gpus.probe_gpus()


# --- the kernel's log -----------------------------------------------------------------------------

LOG = """\
[    3.100000] nvidia: loading out-of-tree module taints kernel.
[    3.200000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05
[  100.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.
[  150.500000] NVRM: Xid (PCI:0000:5e:00): 31, pid=1, name=python, MMU Fault
"""


def test_errors_are_read_with_their_age():
    assert gpus.parse_xids(LOG, 200.0) == (
        XidFacts(code=79, pci_bus_id="0000:3b:00", age_s=100.0),
        XidFacts(code=31, pci_bus_id="0000:5e:00", age_s=49.5),
    )
    assert gpus.parse_xids("kernel: NVRM: Xid (PCI:0000:3b:00): 48, x", 9.0)[0].age_s == 0.0


def test_the_first_log_that_shows_a_driver_is_taken(tool):
    tool("journalctl", "echo 'Hint: you are not in group adm' >&2; exit 1")
    tool("dmesg", f"cat <<'T'\n{LOG}T")
    found = gpus.probe_gpu_log()
    assert found.source == "dmesg"
    assert [xid.code for xid in found.xids] == [79, 31]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo 'Operation not permitted' >&2; exit 1", "dmesg: Operation not permitted"),
        ("echo '[ 0.0] Linux version 6.1'", "another kernel's log"),
    ],
)
def test_a_log_that_shows_no_driver_is_unknown(program, reason, tool):
    for name in ("journalctl", "dmesg"):
        tool(name, program)
    with pytest.raises(IncompleteError, match=reason):
        gpus.probe_gpu_log()


# --- under load -----------------------------------------------------------------------------------

WATCH = """
import json, sys
sys.modules.pop("pynvml", None)  # the real one, which torch imports
import pynvml
from neobert.probes.hardware import load

class NoLoad:
    uuid = "GPU-1"
    def enqueue(self): pass
    def wait(self): pass

print(json.dumps(load.watch_under_load(pynvml, [NoLoad()], duration_s=1.0)))
"""


@pytest.mark.e2e
def test_reasons_of_any_moment_under_load_are_kept(bindings, warm_python):
    bindings(
        "seen = iter([0x4, 0x48, 0x4])",
        "def nvmlDeviceGetCurrentClocksEventReasons(handle): return next(seen, 0)",
    )
    answer = subprocess.run([warm_python, "-c", WATCH], capture_output=True, text=True, check=True)
    (device,) = json.loads(answer.stdout)
    assert device["throttle_reasons"] == ["hw_slowdown", "hw_thermal_slowdown", "sw_power_cap"]
    assert device["num_samples"] >= 3


def test_there_is_nothing_to_load_without_a_gpu(subject, monkeypatch):
    def no_driver() -> None:
        raise UnsupportedError("no NVIDIA driver here")

    monkeypatch.setattr(trials, "probe_gpus", no_driver)
    with pytest.raises(UnsupportedError, match="no NVIDIA driver here"):
        trials.probe_gpu_load(subject)
