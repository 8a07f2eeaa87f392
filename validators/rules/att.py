"""ATT: the requested attention kernel and the isolation of packed documents."""

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
FIXES = {
    "auto": "install the package of one kernel, or set model.attn_backend to sdpa",
    "flash_attn_varlen": f"{INSTALL['flash']}, or set model.attn_backend to auto or torch_varlen",
    "torch_varlen": "set model.attn_backend to auto, or to sdpa in a smoke run",
    "flex": "pip install triton, or set model.attn_backend to auto",
}


def _device(run: ResolvedRun) -> str:
    return run.device or "cpu"


@rule("ATT003", "packing-without-isolation", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def packing_without_isolation(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Packed documents with an attention kernel that cannot separate them on this device or precision.

    ## What it does
    Packing needs document boundaries inside the kernel: a varlen kernel on CUDA in bf16, or segmented SDPA on
    any device. Fails if a varlen kernel is set but the profile has no GPU or the run computes in fp32 (for
    padded rows too: the trainer rejects them), and if `flex` is set without a GPU, where it has no backward
    pass. `auto` selects a supported kernel. If the run was rehearsed, also fails if a packed microbatch came
    with an attention mask: kernels that accept both ignore the boundaries.

    ## Why is this bad?
    The usual workaround, a dense mask of ones over packed rows, lets every document attend to its
    neighbours. The loss still falls, so nothing reveals the leak.

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
    attention = facts.rehearsal.attention if facts.rehearsal is not None else None
    if attention is not None and attention.has_mask_with_packing:
        message = "packed microbatches come with an attention mask, so documents attend to their neighbours"
        yield Violation("datacollator.pack_sequences", message, "pass cu_seqlens to the kernel and no mask")
    backend = run.config.model.attn_backend
    if backend not in ("flash_attn_varlen", "torch_varlen", "flex"):
        return
    if _device(run) == "cpu":
        hint = "set model.attn_backend to auto or sdpa"
        yield Violation(PATH, f"{backend} needs CUDA, but the run uses the CPU", hint)
    elif backend != "flex" and run.config.trainer.mixed_precision != "bf16":
        precision = run.config.trainer.mixed_precision
        hint = "set trainer.mixed_precision to bf16"
        yield Violation(PATH, f"{backend} needs bf16, but trainer.mixed_precision is {precision}", hint)


@rule("ATT004", "flash-off", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def flash_off(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run on GPUs without a flash attention kernel.

    ## What it does
    Fails if a production profile that requires CUDA uses `sdpa` for packed documents: SDPA then runs one call
    per document. On a CPU, and in smoke runs that compare against it, `sdpa` is the reference. Padded
    rows use it everywhere.

    ## Why is this bad?
    Measured on an H200 with packed rows of 1024 tokens, the loop reached 3.5 % of the matrix peak; varlen
    kernels were more than ten times faster on the same work.

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
            "sdpa runs packed documents one call at a time, without flash attention",
            "set model.attn_backend to auto, flash_attn_varlen, torch_varlen or flex",
        )


def _requests_no_kernel(run: ResolvedRun, plan: Plan) -> str:
    return "sdpa runs on every device" if run.config.model.attn_backend == "sdpa" else ""


@rule(
    "ATT001",
    "unavailable-attention",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus", "software"),
    inapplicable=_requests_no_kernel,
)
def unavailable_attention(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An attention kernel that is not installed or not supported on these GPUs.

    ## What it does
    Checks that the package of the requested kernel is installed, and that the kernel supports the run's
    precision, head size and compute capability. `flash_attn_varlen` needs FlashAttention 4, 3 or 2. With
    `auto`, a production run needs at least one supported varlen kernel. Also checks the package and the
    compute capability that `kernel_backend: fused` needs.

    ## Why is this bad?
    A trainer that falls back silently trains on the slow kernel for a week, or on a kernel that
    leaks attention across documents.

    ## Example
    ```text
    model.attn_backend: flash_attn_varlen, but FlashAttention is not installed
    ```

    ## Use instead
    ```text
    pip install --no-build-isolation 'flash-attn>=2.8', or model.attn_backend: torch_varlen
    ```
    """
    backend = run.config.model.attn_backend
    fused_problem = _problem_with_fused(facts) if run.config.model.kernel_backend == "fused" else ""
    if fused_problem:
        hint = f"{INSTALL['fused']} on a Hopper GPU, or set model.kernel_backend to auto"
        yield Violation("model.kernel_backend", f"fused cannot run here: {fused_problem}", hint)
    if backend == "flex":
        problems = [] if "triton" in installed(facts) else ["flex needs triton, which is not installed"]
    else:
        problems = [kernel_problem(run, facts, kernel) for kernel in VARLEN[backend]]
    is_judged = run.is_production or backend != "auto"
    if is_judged and problems and all(problems):
        reasons = "; ".join(dict.fromkeys(problems))
        yield Violation(PATH, f"{backend} cannot run here: {reasons}", FIXES[backend])


def _problem_with_fused(facts: Facts) -> str:
    """Return why the fused blocks cannot run; empty if they can."""
    if "quack-kernels" not in installed(facts):
        return "fused needs quack-kernels, which is not installed"
    other = next((gpu for gpu in facts.gpus or () if gpu.compute_capability[0] != HOPPER), None)
    return f"fused needs compute capability 9.0: {_describe(other)}" if other else ""


def installed(facts: Facts) -> set[str]:
    """Return the names of the installed distributions, normalized as package indexes do."""
    return {name.lower().replace("_", "-") for name in facts.software.packages} if facts.software else set()


def kernel_problem(run: ResolvedRun, facts: Facts, kernel: str) -> str:
    """Return why an attention kernel cannot run; empty if it can."""
    model, package = run.config.model, PACKAGES[kernel]
    first_major, last_major, largest_head = VARLEN_LIMITS[kernel]
    head_size = model.hidden_size // model.num_attention_heads
    supported = range(first_major, last_major + 1)
    other = next((gpu for gpu in facts.gpus or () if gpu.compute_capability[0] not in supported), None)
    if package not in installed(facts):
        return f"{kernel} needs {package}, which is not installed"
    if run.config.trainer.mixed_precision != "bf16":
        return f"{kernel} needs bf16, but trainer.mixed_precision is {run.config.trainer.mixed_precision}"
    if head_size % HEAD_MULTIPLE or head_size > largest_head:
        limit = f"multiples of {HEAD_MULTIPLE} up to {largest_head}"
        return f"{kernel} needs a head size in {limit}, but the model's is {head_size}"
    return f"{kernel} needs compute capability {first_major}.0: {_describe(other)}" if other else ""


def _describe(gpu: GpuFacts) -> str:
    return f"GPU {gpu.index} ({gpu.name}) has {gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
