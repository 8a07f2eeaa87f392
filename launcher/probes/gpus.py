"""The GPUs that this process may see, through a child that can be killed: a driver may hang for minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from launcher.probes.probe import IncompleteError, UnsupportedError
from validators.facts import GpuFacts

TIMEOUT_S = 8.0
FIELDS = ("index", "uuid", "name", "compute_cap", "memory.total", "memory.used", "driver_version")
SMI = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
NVML = (sys.executable, "-P", "-m", "launcher.probes.nvml_child")


def probe_gpus() -> tuple[GpuFacts, ...]:
    """Ask NVML, or nvidia-smi where its bindings are missing."""
    found = _from_nvml()
    if found is None:
        found = parse_smi(_ask(SMI))
    return visible(found, os.environ)


def _from_nvml() -> tuple[GpuFacts, ...] | None:
    answer = json.loads(_ask(NVML))
    if answer["bindings"] is False:
        return None
    if answer["error"]:
        raise UnsupportedError(f"NVML: {answer['error']}")
    return tuple(
        GpuFacts(**{**device, "compute_capability": tuple(device["compute_capability"])})
        for device in answer["devices"]
    )


def parse_smi(text: str) -> tuple[GpuFacts, ...]:
    """Read nvidia-smi's table without header and units; MiB as the tool gives them."""
    lines = [line for line in text.splitlines() if line.strip() and "No devices" not in line]
    return tuple(_parse_line([cell.strip() for cell in line.split(",")], line) for line in lines)


def _parse_line(cells: list[str], line: str) -> GpuFacts:
    if len(cells) != len(FIELDS):
        raise IncompleteError(f"nvidia-smi said: {line.strip()}")
    index, uuid, name, capability, total, used, driver = cells
    major, minor = capability.split(".")
    return GpuFacts(
        index=int(index),
        uuid=uuid,
        name=name,
        compute_capability=(int(major), int(minor)),
        memory_total_mib=int(total),
        memory_used_mib=int(used),
        driver_version=driver,
    )


def visible(devices: Sequence[GpuFacts], environment: Mapping[str, str]) -> tuple[GpuFacts, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; as in CUDA, an unknown entry ends the list."""
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(devices)
    chosen: list[GpuFacts] = []
    for entry in wanted.split(","):
        device = next((gpu for gpu in devices if _is_named(gpu, entry.strip())), None)
        if device is None:
            break
        chosen.append(device)
    return tuple(chosen)


def _is_named(gpu: GpuFacts, entry: str) -> bool:
    return entry == str(gpu.index) or (len(entry) > 4 and gpu.uuid.startswith(entry))


def _ask(command: Sequence[str]) -> str:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise UnsupportedError(f"no NVIDIA driver here: {command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise IncompleteError(f"{command[0]} gave no answer within {TIMEOUT_S:g} s and was killed") from None
    if answer.returncode:
        words = (answer.stderr or answer.stdout).strip().splitlines() or [f"exit {answer.returncode}"]
        raise UnsupportedError(f"{command[0]}: {words[-1]}")
    return answer.stdout
