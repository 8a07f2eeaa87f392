"""Memory used by a rehearsal's ranks, as the driver and the operating system report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

from launcher.probes.gpus import probe_gpus
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from launcher.rundir.records import Record
from neobert.units import BYTES_PER_MIB
from validators.facts_gpu import GpuFacts


def visible_gpus() -> Sequence[GpuFacts]:
    """Return the GPUs that the driver reports; empty if the driver does not respond."""
    try:
        return probe_gpus()
    except (UnsupportedError, IncompleteError, TimedOutError):
        return ()


def reports_memory_of_process(pid: int) -> bool:
    """Return whether the driver reports the memory of process `pid`; it does not in some containers."""
    listed = (process for gpu in visible_gpus() for process in gpu.processes or ())
    return any(process.pid == pid and process.memory_mib is not None for process in listed)


def subtract_earlier_memory(ranks: Sequence[Record], before: Mapping[str, GpuFacts]) -> None:
    """Subtract the device memory used before the rehearsal from `context_mib` of each rank, in place.

    Ranks whose own context was reported by the driver are left unchanged.
    """
    for rank in ranks:
        if rank.get("memory") and not rank.get("is_own_context"):
            others_mib = _used_mib(before.get(rank.get("gpu_uuid", "")))
            rank["memory"]["context_mib"] = max(0, rank["memory"]["context_mib"] - others_mib)


def _used_mib(gpu: GpuFacts | None) -> int:
    return 0 if gpu is None else gpu.memory_used_mib


def externally_reported_memory(result: Record, before: Mapping[str, GpuFacts]) -> dict[str, Any]:
    """Return the memory of a paused rank in MiB, as the driver and the operating system report it.

    `system_rss_mib` and `driver_mib` are None if unknown; `driver_reason` explains why the driver's value is
    missing on a GPU.
    """
    uuid, pid = result.get("gpu_uuid", ""), result.get("pid")
    rss_mib = None
    if pid is not None:
        with suppress(psutil.Error):
            rss_mib = psutil.Process(pid).memory_info().rss / BYTES_PER_MIB
    gpu = next((each for each in (visible_gpus() if uuid else ()) if each.uuid == uuid), None)
    taken_mib, reason = (None, "") if gpu is None else _process_memory_mib(gpu, pid, before.get(uuid))
    return {"system_rss_mib": rss_mib, "driver_mib": taken_mib, "driver_reason": reason}


def _process_memory_mib(gpu: GpuFacts, pid: int | None, before: GpuFacts | None) -> tuple[int | None, str]:
    """Return a process's device memory in MiB and an empty string, or None and the reason.

    If the driver does not report memory per process, the increase since `before` is returned.
    """
    for process in gpu.processes or ():
        if process.pid == pid and process.memory_mib is not None:
            return process.memory_mib, ""
    if _have_other_processes_changed(gpu, pid, before):
        return None, "other processes on the device started, ended or changed their memory since the start"
    return gpu.memory_used_mib - _used_mib(before), ""


def _have_other_processes_changed(gpu: GpuFacts, pid: int | None, before: GpuFacts | None) -> bool:
    """Return whether other processes on the GPU started, ended or changed their memory since `before`.

    In a container the driver may list no processes, or list processes with other PIDs.
    """
    there, earlier = set(gpu.processes or ()), set((before and before.processes) or ())
    is_listed = any(process.pid == pid for process in there)
    newcomers = [process for process in there - earlier if process.pid != pid]
    return bool(earlier - there) or len(newcomers) > (0 if is_listed else 1)
