"""ATT: block kernels, and attention that torch.compile cannot compile."""

from __future__ import annotations

from neobert.install_hints import INSTALL
from neobert.plan import Plan
from neobert.plan.kernels import LONG_ROWS, OWN_KERNELS, obstacle_to_own_kernels
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.att import HOPPER, PATH, VARLEN, installed, kernel_problem

KERNELS = "model.kernel_backend"
COMPILE = "trainer.torch_compile"


def _runs_on_cpu(run: ResolvedRun) -> bool:
    return run.device == "cpu"


def _requests_no_own_kernel(run: ResolvedRun, plan: Plan) -> str:
    requested = run.config.model.kernel_backend
    return "" if requested in OWN_KERNELS else f"kernel_backend {requested} supports every model"


@rule(
    "ATT005",
    "kernels-of-another-model",
    severity=Severity.FAIL,
    level=Level.STATIC,
    waivable=False,
    inapplicable=_requests_no_own_kernel,
)
def kernels_of_another_model(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Kernels that were requested by name but do not support this config.

    ## What it does
    `triton` and `fused` run packed bf16 training on CUDA of a model with RoPE, RMSNorm, SwiGLU and a head
    size of 64. They need the decoder on targets only, no recomputation and `attn_backend: auto`, because they
    bring their own attention. Fails if a config requests one of them together with anything else.

    ## Why is this bad?
    The trainer rejects it too, but only after the machine was rented and the data prepared. `auto`
    selects the fastest kernels that support the config, and reports the reason.

    ## Example
    ```yaml
    model:
      kernel_backend: triton
      attn_backend: flash_attn_varlen
    ```

    ## Use instead
    ```yaml
    model:
      kernel_backend: triton
      attn_backend: auto
    ```
    """
    requested, precision = run.config.model.kernel_backend, run.config.trainer.mixed_precision
    problem = obstacle_to_own_kernels(run.config)
    if not problem and precision != "bf16":
        problem = f"needs trainer.mixed_precision bf16, not {precision}"
    if not problem and _runs_on_cpu(run):
        problem = "needs CUDA, but the run uses the CPU"
    if requested in OWN_KERNELS and problem:
        hint = "set model.kernel_backend to auto, or change the key named above"
        yield Violation(KERNELS, f"{requested} does not support this config: {problem}", hint)


@rule("ATT006", "compiled-loop", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def compiled_loop(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """torch.compile with packed SDPA, which loops over documents.

    ## What it does
    Fails if `torch_compile` is true for packed documents and attention runs on SDPA: by name, on a CPU, or in
    fp32 unless `flex` is set.

    ## Why is this bad?
    The compiler needs one graph of static shapes. A loop whose length is the number of documents has
    neither, so the first step fails.

    ## Example
    ```yaml
    model:
      attn_backend: sdpa
    trainer:
      torch_compile: true
    ```

    ## Use instead
    ```yaml
    model:
      attn_backend: auto
    trainer:
      torch_compile: true
    ```
    """
    config = run.config
    requested, is_half = config.model.attn_backend, config.trainer.mixed_precision == "bf16"
    is_loop = requested == "sdpa" or _runs_on_cpu(run) or (requested != "flex" and not is_half)
    if config.trainer.torch_compile and config.datacollator.pack_sequences and is_loop:
        yield Violation(
            COMPILE,
            "packed SDPA runs one call per document and cannot be compiled",
            "set trainer.torch_compile to false, or use bf16 on CUDA with model.attn_backend auto",
        )


def _leaves_nothing_to_auto(run: ResolvedRun, plan: Plan) -> str:
    model = run.config.model
    leaves_blocks = model.kernel_backend == "auto"
    leaves_attention = model.attn_backend == "auto" and model.kernel_backend not in OWN_KERNELS
    return "" if leaves_blocks or leaves_attention else "the config names its kernels"


@rule(
    "ATT007",
    "slower-kernels",
    severity=Severity.WARN,
    level=Level.GPU,
    needs=("gpus", "software"),
    inapplicable=_leaves_nothing_to_auto,
)
def slower_kernels(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """`auto` selects slower kernels because a package is missing.

    ## What it does
    Reports what `auto` will run if a faster kernel supports these GPUs but is not installed: `triton` without
    quack-kernels on Hopper, torch's modules without Triton, torch's varlen attention without
    FlashAttention, this project's attention on long rows without FlashAttention 4.

    ## Why is this bad?
    The run is correct but slower. Measured on an H200, the fused blocks train 349,000 tokens/s, the
    Triton kernels 326,000, and torch's modules with FlashAttention 4 271,000.

    ## Example
    ```text
    model.kernel_backend: auto, but triton is not installed
    ```

    ## Use instead
    ```text
    pip install triton
    ```
    """
    config, has = run.config, installed(facts)
    is_half, is_hopper = config.trainer.mixed_precision == "bf16", _is_hopper(facts)
    requested = config.model.kernel_backend
    if not is_half:
        return
    runs_own = requested in OWN_KERNELS or (requested == "auto" and not obstacle_to_own_kernels(config))
    if runs_own and requested == "auto" and "triton" not in has:
        runs_own = False
        yield Violation(
            KERNELS, "auto will run torch's modules: triton is not installed", "pip install triton"
        )
    elif runs_own and requested == "auto" and is_hopper and "quack-kernels" not in has:
        message = "auto will run the triton kernels, not fused: quack-kernels is not installed"
        yield Violation(KERNELS, message, INSTALL["fused"])
    if config.model.attn_backend == "auto":
        yield from _slower_attention(run, plan, facts, runs_own=runs_own)


def _slower_attention(run: ResolvedRun, plan: Plan, facts: Facts, *, runs_own: bool) -> Violations:
    length = plan.max_length.value
    if runs_own:
        if length > LONG_ROWS and _is_hopper(facts) and "flash-attn-4" not in installed(facts):
            message = f"rows of {length:,} tokens will run on triton_packed: flash-attn-4 is not installed"
            yield Violation(PATH, message, INSTALL["fused"])
        return
    problems = [kernel_problem(run, facts, kernel) for kernel in VARLEN["flash_attn_varlen"]]
    if all(problems) and not kernel_problem(run, facts, "torch_varlen"):
        message = f"auto will run torch_varlen: {'; '.join(problems)}"
        yield Violation(PATH, message, f"{INSTALL['flash']}, or set model.attn_backend to torch_varlen")


def _is_hopper(facts: Facts) -> bool:
    return bool(facts.gpus) and all(gpu.compute_capability[0] == HOPPER for gpu in facts.gpus or ())
