"""Query of NVML for devices or their health, as JSON, in a separate process that can be killed if it hangs.

`python -m launcher.probes.nvml_child devices|health`
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from neobert.plan.hardware import throttle_reasons
from neobert.units import BYTES_PER_MIB

RETIREMENT_CAUSES = ("MULTIPLE_SINGLE_BIT_ECC_ERRORS", "DOUBLE_BIT_ECC_ERROR")
RECOVERY_FIELD = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
RECOVERY_ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip


def read_devices(what: str) -> dict[str, Any]:
    """Return `devices`, one mapping per device, and `error`, the message of NVML; empty if it succeeded.

    `what` is "devices" or "health".
    """
    nvml = importlib.import_module("pynvml")
    describe = {"devices": device_record, "health": health_record}[what]
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        devices = [{"index": index} | describe(nvml, handle) for index, handle in enumerate(handles)]
    except nvml.NVMLError as error:
        return {"error": str(error), "devices": []}
    return {"error": "", "devices": devices}


def device_record(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return model, memory and processes of a device."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "uuid": _decode(nvml.nvmlDeviceGetUUID(handle)),
        "name": _decode(nvml.nvmlDeviceGetName(handle)),
        "compute_capability": nvml.nvmlDeviceGetCudaComputeCapability(handle),
        "memory_total_mib": memory.total // BYTES_PER_MIB,
        "memory_used_mib": memory.used // BYTES_PER_MIB,
        "driver_version": _decode(nvml.nvmlSystemGetDriverVersion()),
        "pci_bus_id": _decode(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "is_mig_enabled": _query_if_reported(nvml, lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0])),
        "processes": _query_if_reported(nvml, lambda: _process_records(nvml, handle)),
    }


def health_record(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return the health of a device; a value that the GPU does not report is None."""
    remapped = _query_if_supported(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    return {
        "uuid": _decode(nvml.nvmlDeviceGetUUID(handle)),
        "is_ecc_enabled": _query_if_supported(nvml, lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        "uncorrected_errors": _query_if_supported(nvml, lambda: _num_uncorrected_errors(nvml, handle)),
        "retired_pages": _query_if_supported(nvml, lambda: _num_retired_pages(nvml, handle)),
        "is_retirement_pending": _query_if_supported(
            nvml, lambda: bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
        ),
        "is_remap_pending": None if remapped is None else bool(remapped[2]),
        "has_remap_failed": None if remapped is None else bool(remapped[3]),
        "recovery_action": _query_if_supported(nvml, lambda: _recovery_action(nvml, handle)),
        "throttle_reasons": _query_if_supported(nvml, lambda: throttle_reasons(nvml, handle)),
        "pcie_generation": _query_if_supported(
            nvml, lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
        ),
        "pcie_generation_max": _query_if_supported(
            nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        ),
        "pcie_width": _query_if_supported(nvml, lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "pcie_width_max": _query_if_supported(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "num_nvlinks": _query_if_supported(nvml, lambda: _num_active_nvlinks(nvml, handle)),
    }


def _query_if_supported(nvml: Any, query: Callable[[], Any]) -> Any:
    """Return the result of a query, or None if the GPU or its driver does not support it."""
    try:
        return query()
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None


def _query_if_reported(nvml: Any, query: Callable[[], Any]) -> Any:
    """Return the result of a query, or None after any error of NVML, as in some containers."""
    try:
        return query()
    except nvml.NVMLError:
        return None


def _process_records(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    return [
        {
            "pid": process.pid,
            "name": _process_name(nvml, process.pid),
            "memory_mib": None if process.usedGpuMemory is None else process.usedGpuMemory // BYTES_PER_MIB,
        }
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    ]


def _process_name(nvml: Any, pid: int) -> str:
    """Return the name of a process; empty if the process is in another container."""
    try:
        return _decode(nvml.nvmlSystemGetProcessName(pid))
    except nvml.NVMLError:
        return ""


def _num_uncorrected_errors(nvml: Any, handle: Any) -> int:
    return int(
        nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
    )


def _num_retired_pages(nvml: Any, handle: Any) -> int:
    causes = (getattr(nvml, f"NVML_PAGE_RETIREMENT_CAUSE_{cause}") for cause in RETIREMENT_CAUSES)
    return sum(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in causes)


def _recovery_action(nvml: Any, handle: Any) -> str | None:
    """Return the recovery action, or None if the driver (before 570) does not report it."""
    field = getattr(nvml, RECOVERY_FIELD, None)
    if field is None:
        return None
    (answer,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    number = int(answer.value.uiVal)
    return RECOVERY_ACTIONS[number] if number < len(RECOVERY_ACTIONS) else f"action_{number}"


def _num_active_nvlinks(nvml: Any, handle: Any) -> int:
    """Return the number of active NVLinks. Raises NVMLError_NotSupported for a GPU without NVLink."""
    count = int(nvml.nvmlDeviceGetNvLinkState(handle, 0))
    for link in range(1, nvml.NVML_NVLINK_MAX_LINKS):
        count += int(_link_state(nvml, handle, link))
    return count


def _link_state(nvml: Any, handle: Any, link: int) -> int:
    try:
        return int(nvml.nvmlDeviceGetNvLinkState(handle, link))
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        return 0


def _decode(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main(arguments: Sequence[str]) -> None:
    """Print the result of `read_devices` for the first argument as JSON."""
    print(json.dumps(read_devices(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
