"""Peak performance of devices (dense FLOP/s, memory bandwidth, memory size), and GPU throttle reasons.

GPU figures are the vendor's data-sheet values without sparsity. For a CPU, each core is assumed to have eight
single-precision lanes, two fused multiply-adds per cycle and 2.5 GHz; the bandwidth is that of two memory
channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plan.derived import AFRESH, EpochSize, Start
from neobert.plan.vocabulary import TokenizerSize
from neobert.units import MIB_PER_GIB

TERA = 1e12
GIGA = 1e9

CPU_FLOPS_PER_CORE = 8 * 2 * 2 * 2.5 * GIGA
CPU_BYTES_PER_S = 20 * GIGA
CPU_CORES = 2

SLOWDOWNS = {
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
}
"""Clock throttle reasons by NVML bit."""


class Card(NamedTuple):
    """GPU model: peak FLOP/s, memory bandwidth in bytes/s, memory in GiB, CUDA compute capability."""

    name: str
    bf16_flops: float
    tf32_flops: float
    fp32_flops: float
    bytes_per_s: float
    memory_gib: float
    capability: tuple[int, int]


CARDS = (
    Card("B200", 2250 * TERA, 1125 * TERA, 75 * TERA, 8.0 * TERA, 180, (10, 0)),
    Card("H200", 989 * TERA, 494 * TERA, 67 * TERA, 4.8 * TERA, 140, (9, 0)),
    Card("H100", 989 * TERA, 494 * TERA, 67 * TERA, 3.35 * TERA, 80, (9, 0)),
    Card("A100", 312 * TERA, 156 * TERA, 19.5 * TERA, 2.04 * TERA, 80, (8, 0)),
    Card("L40S", 362 * TERA, 183 * TERA, 91.6 * TERA, 0.864 * TERA, 48, (8, 9)),
    Card("L40", 181 * TERA, 90.5 * TERA, 90.5 * TERA, 0.864 * TERA, 48, (8, 9)),
    Card("A40", 149.7 * TERA, 74.8 * TERA, 37.4 * TERA, 0.696 * TERA, 48, (8, 6)),
    Card("A30", 165 * TERA, 82 * TERA, 10.3 * TERA, 0.933 * TERA, 24, (8, 0)),
    Card("A10", 125 * TERA, 62.5 * TERA, 31.2 * TERA, 0.6 * TERA, 24, (8, 6)),
    Card("L4", 121 * TERA, 60 * TERA, 30.3 * TERA, 0.3 * TERA, 24, (8, 9)),
    Card("RTX 4090", 165 * TERA, 82.6 * TERA, 82.6 * TERA, 1.01 * TERA, 24, (8, 9)),
    Card("RTX 3090", 71 * TERA, 35.6 * TERA, 35.6 * TERA, 0.936 * TERA, 24, (8, 6)),
)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions of the plan about one device.

    Attributes:
        peak_flops_per_device: peak FLOP/s of dense bf16 matrix products.
        tf32_flops_per_device: peak FLOP/s of dense fp32 matrix products with TF32 allowed.
        fp32_flops_per_device: peak FLOP/s of dense fp32 matrix products without TF32.
        hbm_bytes_per_s: memory bandwidth.
        device_memory_mib: memory of one device; None if unknown.
        mfu: expected model FLOPs utilization, as a share of the peak.
        source: origin of these values.
        tokenizer: size of the run's tokenizer; None derives it from the config alone.
        epoch: size of an epoch of the run's data; None if unknown.
        start: step that the run starts from, according to the names of checkpoint folders. The plan covers
            the whole run; `neobert.plan.remaining` covers the rest of it.
        hub_weights: Hub name of initial weights that are not on this machine; otherwise empty.
    """

    device_name: str
    peak_flops_per_device: float
    tf32_flops_per_device: float
    fp32_flops_per_device: float
    hbm_bytes_per_s: float
    device_memory_mib: float | None
    mfu: float
    source: str
    tokenizer: TokenizerSize | None = None
    epoch: EpochSize | None = None
    start: Start = AFRESH
    hub_weights: str = ""

    @property
    def is_cuda(self) -> bool:
        """Return whether the device is a GPU."""
        return self.device_name != "CPU"


def assumptions_for(
    gpu: str | None, memory_gib: float | None, mfu: float, cpu_cores: int = CPU_CORES
) -> Assumptions:
    """Return the assumptions about a GPU by name, or about the CPU if `gpu` is None.

    `gpu` may be a short name (`A100`) or the driver's name (`NVIDIA A100-SXM4-80GB`). `memory_gib` overrides
    the memory of the data sheet. Raises `ProjectError` for a GPU that is not in `CARDS`.
    """
    if gpu is None:
        return _cpu_assumptions(memory_gib, mfu, cpu_cores)
    card = find_card(gpu)
    memory = memory_gib if memory_gib is not None else card.memory_gib
    return Assumptions(
        device_name=card.name,
        peak_flops_per_device=card.bf16_flops,
        tf32_flops_per_device=card.tf32_flops,
        fp32_flops_per_device=card.fp32_flops,
        hbm_bytes_per_s=card.bytes_per_s,
        device_memory_mib=memory * MIB_PER_GIB,
        mfu=mfu,
        source=f"{card.name} data sheet, dense; expected share of the peak {mfu:.0%}",
    )


def find_card(gpu: str) -> Card:
    """Return the entry of `CARDS` whose name occurs in `gpu`. Raises `ProjectError` if there is none."""
    words = _name_words(gpu)
    for card in CARDS:
        needle = _name_words(card.name)
        if any(words[i : i + len(needle)] == needle for i in range(len(words))):
            return card
    known = ", ".join(card.name for card in CARDS)
    raise ProjectError(
        "unknown-gpu",
        f"the GPU {gpu!r} is not in the table of data-sheet values",
        f"set requires.gpu of the profile to one of {known}, or to null",
        exit_code=EXIT_USAGE,
    )


def _name_words(name: str) -> list[str]:
    return name.upper().replace("-", " ").replace("_", " ").split()


def _cpu_assumptions(memory_gib: float | None, mfu: float, cores: int) -> Assumptions:
    peak = CPU_FLOPS_PER_CORE * cores
    return Assumptions(
        device_name="CPU",
        peak_flops_per_device=peak,
        tf32_flops_per_device=peak,
        fp32_flops_per_device=peak,
        hbm_bytes_per_s=CPU_BYTES_PER_S,
        device_memory_mib=None if memory_gib is None else memory_gib * MIB_PER_GIB,
        mfu=mfu,
        source=f"{cores} cores assumed at {CPU_FLOPS_PER_CORE / GIGA:.0f} GFLOP/s each, "
        f"{CPU_BYTES_PER_S / GIGA:.0f}e9 bytes/s; expected share of the peak {mfu:.0%}",
    )


def throttle_reasons(nvml: Any, handle: Any) -> list[str]:
    """Return the current clock throttle reasons of a GPU. Supports nvidia-ml-py before and after 12.535."""
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    bits = (newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)
    return [name for bit, name in SLOWDOWNS.items() if bits & bit]
