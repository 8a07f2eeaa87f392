"""GPU, speed and answers: what the devices reach of their data sheet, and whether they compute right."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.errors import ProjectError
from neobert.plan import Plan, find_card
from neobert.plan.hardware import Card
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_gpu import GpuHealthFacts
from validators.facts_num import DeviceFacts
from validators.finding import Level, Severity, Violation
from validators.links import pcie_bytes_per_s
from validators.rule import CannotTellError, Violations, rule

PATH = "distributed.nproc_per_node"
LEAST_GEMM_SHARE, USUAL_GEMM_SHARE = 0.6, 0.75
LEAST_COPY_SHARE = 0.7
LEAST_HOST_SHARE = 0.5
LEAST_OF_FASTEST = 0.9
TERA, GIGA = 1e12, 1e9
SLOW = "see what else runs there, its clocks and its power limit: nvidia-smi -q -d PERFORMANCE,CLOCK,POWER"


def _used(run: ResolvedRun, facts: Facts) -> tuple[DeviceFacts, ...]:
    return (facts.devices or ())[: run.config.distributed.nproc_per_node]


def _card(device: DeviceFacts) -> Card:
    """Raises CannotTellError for a card without a data sheet here."""
    try:
        return find_card(device.name)
    except ProjectError as error:
        raise CannotTellError(error.message) from None


@rule("GPU005", "slow-gpu", severity=Severity.FAIL, level=Level.GPU, needs=("devices",))
def slow_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU that multiplies matrices far below its data sheet, or below its neighbours.

    ## What it does
    Compares dense bf16 products of 8192 by 8192 with the card's data sheet. Fails below 60 % of it while the
    card is kept busy, and where one GPU is then more than a tenth slower than the fastest of the run. Warns
    below 75 % in the best of some bursts of milliseconds from idle.

    A data sheet counts at a clock that dense products cannot keep up: a sound H200 reaches 80 % of it in a
    burst and 70 to 74 % at its limit of 700 W, so that 75 % would warn of every one. A burst is over before
    the limit acts, and shows what holds a card back at all times.

    ## Why is this bad?
    Every step waits for the slowest GPU, and a card that is hot, capped or shared makes the ETA fiction.

    ## Example
    ```text
    GPU 2: 402 TFLOP/s, 41 % of the data sheet's 989
    ```

    ## Use instead
    ```text
    a card with its clocks and power limit back, or another one
    ```
    """
    devices = _used(run, facts)
    for device in devices:
        peak, label = _card(device).bf16_flops, _label(device, facts)
        reached = f"{device.gemm_flops / TERA:.0f} TFLOP/s"
        at_best = device.burst_flops or device.gemm_flops
        sheet = f"of the data sheet's {peak / TERA:.0f}"
        if device.gemm_flops < LEAST_GEMM_SHARE * peak:
            yield Violation(PATH, f"{label}: {reached}, {device.gemm_flops / peak:.0%} {sheet}", SLOW)
        elif at_best < USUAL_GEMM_SHARE * peak:
            message = f"{label}: {at_best / TERA:.0f} TFLOP/s at best, {at_best / peak:.0%} {sheet}"
            yield Violation(PATH, message, SLOW, Severity.WARN)
        fastest = max(other.gemm_flops for other in devices)
        if device.gemm_flops < LEAST_OF_FASTEST * fastest:
            message = f"{label}: {reached}, and the fastest GPU of the run reaches {fastest / TERA:.0f}"
            yield Violation(PATH, message, SLOW)


@rule("GPU006", "slow-gpu-memory", severity=Severity.WARN, level=Level.GPU, needs=("devices",))
def slow_gpu_memory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU whose memory, or whose way to the host, is slow.

    ## What it does
    Warns where a copy within the device moves less than 70 % of the bytes that the data sheet gives its
    memory, where a copy from pinned host memory reaches less than half of what its PCIe link carries, and
    where that link has fewer lanes than the card and the slot could have.

    ## Why is this bad?
    Norms, activations and the optimizer run at the speed of memory; a link that fell back to fewer lanes
    starves the device and often comes before it falls off the bus.

    ## Example
    ```text
    GPU 1: 4 of 16 PCIe lanes
    ```

    ## Use instead
    ```text
    reseat the card or take another; end what else uses its memory
    ```
    """
    health = dict(enumerate(facts.gpu_health or ()))  # both in the order of the visible devices
    for device in _used(run, facts):
        label = _label(device, facts)
        spec = _card(device).bytes_per_s
        if device.copy_bytes_per_s < LEAST_COPY_SHARE * spec:
            copied = f"{device.copy_bytes_per_s / TERA:.2f} of {spec / TERA:.2f} TB/s"
            yield Violation(PATH, f"{label}: a copy in its memory reaches {copied}", SLOW)
        for fault in _link_faults(device, health.get(device.index)):
            yield Violation(PATH, f"{label}: {fault}", "have the card and its slot looked at")


def _label(device: DeviceFacts, facts: Facts) -> str:
    """Name a device as nvidia-smi does, which counts those too that this process may not see."""
    gpus = facts.gpus or ()
    number = gpus[device.index].index if device.index < len(gpus) else device.index
    return f"GPU {number} ({device.name})"


def _link_faults(device: DeviceFacts, gpu: GpuHealthFacts | None) -> Iterator[str]:
    """A link that nobody described is judged by nothing."""
    if gpu is None or gpu.pcie_width is None:
        return
    if gpu.pcie_width_max is not None and gpu.pcie_width < gpu.pcie_width_max:
        yield f"{gpu.pcie_width} of {gpu.pcie_width_max} PCIe lanes"
    carries = pcie_bytes_per_s(gpu)
    if carries is not None and device.host_bytes_per_s < LEAST_HOST_SHARE * carries:
        reached = f"{device.host_bytes_per_s / GIGA:.1f} of {carries / GIGA:.0f} GB/s"
        yield f"a copy from the host reaches {reached}"


@rule(
    "GPU007",
    "wrong-gpu-arithmetic",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("devices",),
    waivable=False,
)
def wrong_gpu_arithmetic(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU that computes a known answer wrong.

    ## What it does
    Multiplies sparse matrices of -1, 0 and 1, whose product the host worked out and bf16 holds exactly,
    many times on every device. One element that differs once is a failure: the right answer has one
    form, whatever the order of addition, so the devices are held against each other too.

    ## Why is this bad?
    A device that is wrong once in a million products corrupts a run without stopping it.

    ## Example
    ```text
    GPU 5: 1 of 24 known products is wrong
    ```

    ## Use instead
    ```text
    another GPU; this one goes back
    ```
    """
    for device in _used(run, facts):
        label = _label(device, facts)
        if not device.answers:
            raise CannotTellError(f"{label}: no known product was computed")
        if device.wrong_answers:
            message = f"{label}: {device.wrong_answers} of {device.answers} known products are wrong"
            yield Violation(PATH, message, "take another GPU, and have this one replaced")
