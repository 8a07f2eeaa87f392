"""PRE: declared precision of the run."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

BF16_MAJOR = 8


@rule("PRE001", "fp32-in-production", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def fp32_in_production(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run in fp32.

    ## What it does
    Fails if `trainer.mixed_precision` is `fp32` or `no` in a production run. Smoke runs on a CPU and
    numerical references use fp32 for good reason and are exempt.

    ## Why is this bad?
    In fp32, tensor cores are 3 to 16 times slower than in bf16, activations take twice the memory,
    and flash attention is not available.

    ## Example
    ```yaml
    profile: a100-prod
    trainer:
      mixed_precision: fp32
    ```

    ## Use instead
    ```yaml
    profile: a100-prod
    trainer:
      mixed_precision: bf16
    ```
    """
    precision = run.config.trainer.mixed_precision
    if precision != "bf16":
        yield Violation(
            "trainer.mixed_precision",
            f"trainer.mixed_precision is {precision} in a production run",
            "set trainer.mixed_precision to bf16",
        )


def _production_or_no_gpu(run: ResolvedRun, plan: Plan) -> str:
    if run.profile is None or run.is_production:
        return "PRE001 judges production runs"
    return "" if run.profile.requires.device == "cuda" else "the run uses no GPU"


@rule(
    "PRE004",
    "fp32-on-gpu",
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_production_or_no_gpu,
)
def fp32_on_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A smoke run in fp32 on a GPU.

    ## What it does
    Warns about `fp32` and `no` if a smoke profile requires CUDA. PRE001 covers production runs; on a CPU,
    fp32 is appropriate.

    ## Why is this bad?
    Such a run uses other kernels than the production run that it represents, so it shows little about it.

    ## Example
    ```yaml
    profile: gpu-smoke
    trainer:
      mixed_precision: fp32
    ```

    ## Use instead
    ```yaml
    profile: gpu-smoke
    trainer:
      mixed_precision: bf16
    ```
    """
    precision = run.config.trainer.mixed_precision
    if precision != "bf16":
        message = f"trainer.mixed_precision is {precision} on a GPU"
        yield Violation("trainer.mixed_precision", message, "set trainer.mixed_precision to bf16")


def _computes_in_bf16(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.trainer.mixed_precision == "bf16" else "the run does not compute in bf16"


@rule(
    "PRE002",
    "precision-beyond-gpu",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus",),
    inapplicable=_computes_in_bf16,
)
def precision_beyond_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU without bf16 tensor cores.

    ## What it does
    Requires compute capability 8.0 on every visible GPU if the run computes in bf16.

    ## Why is this bad?
    Older GPUs emulate bf16 in fp32: the run works correctly, but takes many times as long.

    ## Example
    ```text
    trainer.mixed_precision: bf16 on a V100 (compute capability 7.0)
    ```

    ## Use instead
    ```text
    an A100, H100, H200, L40S or RTX 4090 (8.0 or later)
    ```
    """
    for gpu in facts.gpus or ():
        major, minor = gpu.compute_capability
        if major < BF16_MAJOR:
            yield Violation(
                "trainer.mixed_precision",
                f"GPU {gpu.index} ({gpu.name}) has compute capability {major}.{minor}; bf16 needs 8.0",
                "use a GPU with compute capability 8.0 or later",
            )
