"""GPU rules: speed, links and correctness of the devices, compared with the data sheet and known products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from neobert.errors import ProjectError
from neobert.plan import Plan, find_card
from neobert.plan.hardware import Card
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import CannotTellError, Violations, rule
from validators.rules.gpu import used_devices

if TYPE_CHECKING:
    from validators.facts_gpu import GpuHealthFacts
    from validators.facts_numerics import DeviceFacts


PATH = "distributed.nproc_per_node"
MIN_GEMM_SHARE, USUAL_GEMM_SHARE = 0.6, 0.75
MIN_COPY_SHARE = 0.7
MIN_HOST_SHARE = 0.5
MIN_OF_FASTEST = 0.9
TERA, GIGA = 1e12, 1e9
SLOW = "check other processes, clocks and power limit: nvidia-smi -q -d PERFORMANCE,CLOCK,POWER"
NVLINK_BYTES_PER_S = 25e9
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}


def _data_sheet(device: DeviceFacts) -> Card:
    """Return the data sheet of a GPU. Raises CannotTellError if there is none for it."""
    try:
        return find_card(device.name)
    except ProjectError as error:
        raise CannotTellError(error.message) from None


@rule("GPU005", "slow-gpu", severity=Severity.FAIL, level=Level.GPU, needs=("devices",))
def slow_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU that multiplies matrices far below its data sheet, or more slowly than the others.

    ## What it does
    Compares dense bf16 products of 8192 by 8192 with the GPU's data sheet. Fails below 60 % of it under
    sustained load, and if one GPU is then more than 10 % slower than the fastest of the run. Warns below 75 %
    in the best of several short bursts from idle.

    Data sheets assume a clock that dense products cannot sustain: a healthy H200 reaches 80 % in a burst and
    70 to 74 % at its power limit of 700 W, so a sustained limit of 75 % would warn about every one. A burst
    ends before the power limit acts, and shows problems that are always present.

    ## Why is this bad?
    Every step waits for the slowest GPU, and a GPU that is hot, capped or shared invalidates the predicted
    duration.

    ## Example
    ```text
    GPU 2: 402 TFLOP/s, 41 % of the data sheet's 989
    ```

    ## Use instead
    ```text
    a GPU with its normal clocks and power limit, or another one
    ```
    """
    devices = used_devices(facts.devices, run)
    for device in devices:
        peak, label = _data_sheet(device).bf16_flops, _gpu_label(device, facts)
        reached = f"{device.gemm_flops / TERA:.0f} TFLOP/s"
        at_best = device.burst_flops or device.gemm_flops
        sheet = f"of the data sheet's {peak / TERA:.0f}"
        if device.gemm_flops < MIN_GEMM_SHARE * peak:
            message = f"{label}: {reached}, {device.gemm_flops / peak:.0%} {sheet}"
            yield Violation(PATH, f"{message} (at least {MIN_GEMM_SHARE:.0%})", SLOW)
        elif at_best < USUAL_GEMM_SHARE * peak:
            message = f"{label}: {at_best / TERA:.0f} TFLOP/s at best, {at_best / peak:.0%} {sheet}"
            yield Violation(PATH, f"{message} (at least {USUAL_GEMM_SHARE:.0%})", SLOW, Severity.WARN)
        fastest = max(other.gemm_flops for other in devices)
        if device.gemm_flops < MIN_OF_FASTEST * fastest:
            message = f"{label}: {reached}, but the fastest GPU of the run reaches {fastest / TERA:.0f}"
            yield Violation(PATH, f"{message} (at least {MIN_OF_FASTEST:.0%})", SLOW)


@rule("GPU006", "slow-gpu-memory", severity=Severity.WARN, level=Level.GPU, needs=("devices",))
def slow_gpu_memory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU with slow memory, or a slow link to the host.

    ## What it does
    Warns if a copy within the device reaches less than 70 % of the memory bandwidth in the data sheet, if a
    copy from pinned host memory reaches less than half of the PCIe bandwidth, and if
    the link uses fewer lanes than GPU and slot support.

    ## Why is this bad?
    Norms, activations and the optimizer are memory-bound. A link that fell back to fewer lanes
    starves the device, often shortly before the GPU falls off the bus.

    ## Example
    ```text
    GPU 1: 4 of 16 PCIe lanes
    ```

    ## Use instead
    ```text
    reseat the GPU or use another one; stop other processes that use its memory
    ```
    """
    health = dict(enumerate(facts.gpu_health or ()))  # both are in the order of the visible devices
    for device in used_devices(facts.devices, run):
        label = _gpu_label(device, facts)
        spec = _data_sheet(device).bytes_per_s
        if device.copy_bytes_per_s < MIN_COPY_SHARE * spec:
            copied = f"{device.copy_bytes_per_s / TERA:.2f} of {spec / TERA:.2f} TB/s"
            message = f"{label}: a copy within the device reaches {copied}"
            yield Violation(PATH, f"{message} (at least {MIN_COPY_SHARE:.0%})", SLOW)
        for fault in _link_faults(device, health.get(device.index)):
            yield Violation(PATH, f"{label}: {fault}", "reseat the GPU, or have the GPU and its slot checked")


def _gpu_label(device: DeviceFacts, facts: Facts) -> str:
    """Return name and index of a device in nvidia-smi, which also counts devices hidden from this process."""
    gpus = facts.gpus or ()
    number = gpus[device.index].index if device.index < len(gpus) else device.index
    return f"GPU {number} ({device.name})"


def _link_faults(device: DeviceFacts, gpu: GpuHealthFacts | None) -> Iterator[str]:
    """Yield faults of the PCIe link; no faults if the driver did not report the link."""
    if gpu is None or gpu.pcie_width is None:
        return
    if gpu.pcie_width_max is not None and gpu.pcie_width < gpu.pcie_width_max:
        yield f"{gpu.pcie_width} of {gpu.pcie_width_max} PCIe lanes"
    nominal = pcie_bytes_per_s(gpu)
    if nominal is not None and device.host_bytes_per_s < MIN_HOST_SHARE * nominal:
        reached = f"{device.host_bytes_per_s / GIGA:.1f} of {nominal / GIGA:.0f} GB/s"
        yield f"a copy from the host reaches {reached} (at least {MIN_HOST_SHARE:.0%})"


@rule(
    "GPU007",
    "wrong-gpu-arithmetic",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("devices",),
    waivable=False,
)
def wrong_gpu_arithmetic(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU that computes wrong results.

    ## What it does
    Multiplies sparse matrices of -1, 0 and 1 many times on every device. The host computed the product, and
    bf16 represents it exactly in any order of addition, so a single differing element is a failure, and all
    devices must agree.

    ## Why is this bad?
    A device that is wrong once in a million products corrupts a run without stopping it.

    ## Example
    ```text
    GPU 5: wrong results in 1 of 24 known products
    ```

    ## Use instead
    ```text
    use another GPU and return this one
    ```
    """
    for device in used_devices(facts.devices, run):
        label = _gpu_label(device, facts)
        if not device.answers:
            raise CannotTellError(f"{label}: no known product was computed")
        if device.wrong_answers:
            message = f"{label}: wrong results in {device.wrong_answers} of {device.answers} known products"
            yield Violation(
                PATH, message, "choose another GPU with CUDA_VISIBLE_DEVICES, and replace this one"
            )


def slowest_link(devices: Sequence[GpuHealthFacts]) -> tuple[str, float] | None:
    """Return the name and one-way bytes/s of the slowest link, or None if a link was not reported."""
    links = [_link_rate(device) for device in devices]
    known = [link for link in links if link is not None]
    return min(known, key=lambda link: link[1]) if known and len(known) == len(links) else None


def _link_rate(gpu: GpuHealthFacts) -> tuple[str, float] | None:
    if gpu.num_nvlinks:
        return f"{gpu.num_nvlinks} NVLinks", gpu.num_nvlinks * NVLINK_BYTES_PER_S
    bytes_per_s = pcie_bytes_per_s(gpu)
    if bytes_per_s is not None:
        return f"{gpu.pcie_width} lanes of PCIe {gpu.pcie_generation_max}", bytes_per_s
    return None


def pcie_bytes_per_s(gpu: GpuHealthFacts) -> float | None:
    """Return the one-way bytes/s of the PCIe lanes in use at their highest generation, or None."""
    if gpu.pcie_generation_max in PCIE_LANE_BYTES_PER_S and gpu.pcie_width:
        return gpu.pcie_width * PCIE_LANE_BYTES_PER_S[gpu.pcie_generation_max]
    return None
