"""Visible GPUs, their health and their errors in the kernel log, queried in child processes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from launcher.probes.child import run_for_json, run_for_text
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from validators.facts_gpu import GpuFacts, GpuHealthFacts, GpuLogFacts, GpuProcessFacts, XidFacts

TIMEOUT_S = 8.0
NVML = (sys.executable, "-P", "-m", f"{__package__}.nvml_child")
NO_GPU = "no NVIDIA GPU on this machine"
NONE_VISIBLE = "no GPU is visible (see CUDA_VISIBLE_DEVICES)"
LOG_TIMEOUT_S = 4.0
# journald keeps what the kernel's ring has overwritten.
READERS = (
    ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output", "short-monotonic"),
    ("dmesg", "--raw"),
    ("dmesg",),
)
DRIVER = re.compile(r"NVRM:|\bnvidia(?:-[a-z]+)*[: ]")
STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]++)[^)]*\): (\d+)")


Device = TypeVar("Device", GpuFacts, GpuHealthFacts)


def probe_gpus() -> tuple[GpuFacts, ...]:
    """Return the visible GPUs, possibly none. Raises UnsupportedError if NVML reports an error."""
    return visible_devices([_gpu_facts(each) for each in _query_nvml("devices")], os.environ)


def probe_gpu_health() -> tuple[GpuHealthFacts, ...]:
    """Return the health of the visible GPUs. Raises UnsupportedError if NVML reports an error."""
    return visible_devices([_gpu_health_facts(each) for each in _query_nvml("health")], os.environ)


def _query_nvml(what: str) -> list[dict[str, Any]]:
    answer = run_for_json((*NVML, what), TIMEOUT_S)
    if answer["error"]:
        raise UnsupportedError(f"{NO_GPU} ({answer['error']})")
    return list(answer["devices"])


def _gpu_facts(record: dict[str, Any]) -> GpuFacts:
    processes = record["processes"]
    return GpuFacts(
        **{
            **record,
            "compute_capability": tuple(record["compute_capability"]),
            "processes": None if processes is None else tuple(GpuProcessFacts(**one) for one in processes),
        }
    )


def _gpu_health_facts(record: dict[str, Any]) -> GpuHealthFacts:
    reasons = record["throttle_reasons"]
    return GpuHealthFacts(**{**record, "throttle_reasons": None if reasons is None else tuple(reasons)})


def visible_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices in CUDA_VISIBLE_DEVICES, in its order; all devices if it is not set.

    An unknown entry ends the list, as in CUDA.
    """
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(devices)
    chosen: list[Device] = []
    for entry in wanted.split(","):
        device = next((gpu for gpu in devices if _is_named(gpu, entry.strip())), None)
        if device is None:
            break
        chosen.append(device)
    return tuple(chosen)


def _is_named(gpu: GpuFacts | GpuHealthFacts, entry: str) -> bool:
    return entry == str(gpu.index) or (len(entry) > 4 and gpu.uuid.startswith(entry))


def probe_gpu_log() -> GpuLogFacts:
    """Read the kernel log with the first program that shows it. Raises `IncompleteError` if none does."""
    reasons: list[str] = []
    for command in READERS:
        try:
            text = run_for_text(command, LOG_TIMEOUT_S)
        except (UnsupportedError, IncompleteError, TimedOutError) as error:
            reasons.append(str(error))
            continue
        if DRIVER.search(text):
            return GpuLogFacts(source=command[0], xids=parse_xids(text, uptime_s()))
        reasons.append(f"{command[0]} shows no NVIDIA driver message: this may be another kernel's log")
    raise IncompleteError("; ".join(dict.fromkeys(reasons)))


def uptime_s() -> float:
    """Return the current time of the kernel log's clock, in seconds since boot."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def parse_xids(log: str, now_s: float) -> tuple[XidFacts, ...]:
    """Return the Xid errors in the order of the log, with their age. A line without a time has age 0."""
    lines = ((line, XID.search(line)) for line in log.splitlines())
    return tuple(
        XidFacts(code=int(match[2]), pci_bus_id=match[1], age_s=_age_s(line, now_s))
        for line, match in lines
        if match
    )


def _age_s(line: str, now_s: float) -> float:
    stamp = STAMP.search(line)
    return max(0.0, round(now_s - float(stamp[1]), 1)) if stamp else 0.0
