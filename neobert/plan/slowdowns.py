"""Why a device's clocks are held back, in NVML's bits and in words. Imports nothing."""

from __future__ import annotations

from typing import Any

REASONS = {
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
}


def reasons_now(nvml: Any, handle: Any) -> list[str]:
    """Name the reasons of this moment. Bindings before 12.535 have the question under its old name."""
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    bits = (newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)
    return [name for bit, name in REASONS.items() if bits & bit]
