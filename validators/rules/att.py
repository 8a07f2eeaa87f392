"""ATT: the attention kernel, and whether it keeps packed documents apart."""

from __future__ import annotations

from neobert.install_hints import INSTALL
from neobert.plan import Plan
from neobert.plan.kernels import VARLEN_LIMITS
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_gpu import GpuFacts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

HOPPER = 9
HEAD_MULTIPLE = 8
PACKAGES = {
    "flash_attn_4": "flash-attn-4",
    "flash_attn_3": "flash-attn-3",
    "flash_attn_2": "flash-attn",
    "torch_varlen": "torch",
}
VARLEN = {
    "flash_attn_varlen": tuple(PACKAGES)[:3],
    "torch_varlen": ("torch_varlen",),
    "auto": tuple(PACKAGES),
}
PATH = "model.attn_backend"
WAY_OUT = {
    "auto": "install the kernel, or name another",
    "flash_attn_varlen": f"{INSTALL['flash']}, or set it to auto or torch_varlen",
    "torch_varlen": "set it to auto, or sdpa in a smoke run",
    "flex": "pip install triton, or set it to auto",
}


def _device(run: ResolvedRun) -> str:
    return run.device or "cpu"


@rule("ATT003", "packing-without-isolation", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def packing_without_isolation(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Packed documents with a kernel that cannot keep them apart on the run's device and precision.

    ## What it does
    Packing needs boundaries inside the kernel: the varlen kernels on CUDA in bf16, or segmented SDPA
    anywhere. Refuses a varlen kernel where the profile has no GPU or the run computes in fp32, for padded
    rows too, which the trainer would refuse, and `flex` where there is no GPU, for want of a gradient; `auto`
    takes what is legal. Where the run was rehearsed, no packed microbatch may have come with a mask: the
    kernels that take both ignore the boundaries.

    ## Why is this bad?
    The usual way out, a dense mask of ones over packed rows, lets every document read its neighbours. The
    loss falls all the same, so nobody sees it.

    ## Example
    ```yaml
    model:
      attn_backend: flash_attn_varlen
    trainer:
      mixed_precision: fp32
    ```

    ## Use instead
    ```yaml
    model:
      attn_backend: flash_attn_varlen
    trainer:
      mixed_precision: bf16
    ```
    """
    seen = facts.rehearsal.attention if facts.rehearsal is not None else None
    if seen is not None and seen.has_mask_with_packing:
        message = (
            "packed microbatches come with an attention mask, by which every document reads its neighbours"
        )
        yield Violation("datacollator.pack_sequences", message, "give the kernel cu_seqlens, and no mask")
    backend = run.config.model.attn_backend
    if backend not in ("flash_attn_varlen", "torch_varlen", "flex"):
        return
    if _device(run) == "cpu":
        yield Violation(PATH, f"{backend} runs on CUDA only and the run has a CPU", "set it to auto or sdpa")
    elif backend != "flex" and run.config.trainer.mixed_precision != "bf16":
        yield Violation(PATH, f"{backend} takes bf16 only", "set trainer.mixed_precision to bf16")


@rule("ATT004", "flash-off", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def flash_off(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run on GPUs without a flash kernel.

    ## What it does
    Refuses `sdpa` over packed documents for a production profile that requires CUDA: they go through it one
    by one, in a loop. On a CPU, and in smoke runs that compare against it, it is the reference; padded rows
    go through it anywhere.

    ## Why is this bad?
    Measured on an H200 with packed rows of 1024, the loop reached 3.5 % of the matrix peak, and the
    varlen kernels on the same work more than ten times that.

    ## Example
    ```yaml
    profile: a100-prod
    model:
      attn_backend: sdpa
    ```

    ## Use instead
    ```yaml
    profile: a100-prod
    model:
      attn_backend: auto
    ```
    """
    is_packed = run.config.datacollator.pack_sequences
    if _device(run) == "cuda" and is_packed and run.config.model.attn_backend == "sdpa":
        yield Violation(
            PATH,
            "sdpa switches flash attention off for packed documents",
            "set model.attn_backend to auto, flash_attn_varlen, torch_varlen or flex",
        )


def _asks_for_a_kernel(run: ResolvedRun, plan: Plan) -> str:
    return "sdpa is legal on every device" if run.config.model.attn_backend == "sdpa" else ""


@rule(
    "ATT001",
    "unavailable-attention",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus", "software"),
    inapplicable=_asks_for_a_kernel,
)
def unavailable_attention(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An attention kernel that is not installed, or not legal on these GPUs.

    ## What it does
    Looks for the package of the requested kernel and compares precision, head size and compute capability
    with what it takes. `flash_attn_varlen` needs one of FlashAttention 4, 3 and 2; with `auto`, at least one
    varlen kernel has to be legal in a production run. Looks likewise for the packages and the card of
    `kernel_backend: fused`.

    ## Why is this bad?
    A trainer that falls back in silence trains on the slow kernel for a week, and on the one that mixes
    documents if it is unlucky.

    ## Example
    ```text
    model.attn_backend: flash_attn_varlen, and no FlashAttention is installed
    ```

    ## Use instead
    ```text
    pip install --no-build-isolation 'flash-attn>=2.8', or model.attn_backend: torch_varlen
    ```
    """
    backend = run.config.model.attn_backend
    fused_obstacle = _obstacle_to_fused(facts) if run.config.model.kernel_backend == "fused" else ""
    if fused_obstacle:
        hint = f"{INSTALL['fused']} on a Hopper card, or set it to auto"
        yield Violation("model.kernel_backend", f"fused cannot run here: {fused_obstacle}", hint)
    if backend == "flex":
        obstacles = [] if "triton" in installed(facts) else ["it needs triton, which is not installed"]
    else:
        obstacles = [obstacle_to(run, facts, kernel) for kernel in VARLEN[backend]]
    is_judged = run.is_production or backend != "auto"
    if is_judged and obstacles and all(obstacles):
        said = "; ".join(dict.fromkeys(obstacles))
        yield Violation(PATH, f"{backend} cannot run here: {said}", WAY_OUT[backend])


def _obstacle_to_fused(facts: Facts) -> str:
    """Say what keeps the fused blocks from running; empty where nothing does."""
    if "quack-kernels" not in installed(facts):
        return "it needs quack-kernels, which is not installed"
    other = next((gpu for gpu in facts.gpus or () if gpu.compute_capability[0] != HOPPER), None)
    return f"its tiles are made for compute capability 9.0: {_describe(other)}" if other else ""


def installed(facts: Facts) -> set[str]:
    """Return the installed distributions, named as the package index does."""
    return {name.lower().replace("_", "-") for name in facts.software.packages} if facts.software else set()


def obstacle_to(run: ResolvedRun, facts: Facts, kernel: str) -> str:
    """Say what stands in the way of a kernel; empty where nothing does."""
    model, package = run.config.model, PACKAGES[kernel]
    first_major, last_major, largest_head = VARLEN_LIMITS[kernel]
    head_size = model.hidden_size // model.num_attention_heads
    legal = range(first_major, last_major + 1)
    other = next((gpu for gpu in facts.gpus or () if gpu.compute_capability[0] not in legal), None)
    if package not in installed(facts):
        return f"{kernel} needs {package}, which is not installed"
    if run.config.trainer.mixed_precision != "bf16":
        return f"{kernel} takes bf16, not {run.config.trainer.mixed_precision}"
    if head_size % HEAD_MULTIPLE or head_size > largest_head:
        return f"{kernel} takes heads of a multiple of {HEAD_MULTIPLE} up to {largest_head}, not {head_size}"
    return f"{kernel} needs compute capability {first_major}.0: {_describe(other)}" if other else ""


def _describe(gpu: GpuFacts) -> str:
    return f"GPU {gpu.index} ({gpu.name}) has {gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
