"""ATT: the kernels of the blocks, and what torch.compile can make of the attention."""

from __future__ import annotations

from neobert.install_hints import INSTALL
from neobert.plan import Plan
from neobert.plan.kernels import LONG_ROWS, OWN_KERNELS, obstacle_to_own_kernels
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.att import HOPPER, PATH, VARLEN, installed, obstacle_to

KERNELS = "model.kernel_backend"
COMPILE = "trainer.torch_compile"


def _is_on_a_cpu(run: ResolvedRun) -> bool:
    return run.device == "cpu"


def _names_no_own_kernel(run: ResolvedRun, plan: Plan) -> str:
    named = run.config.model.kernel_backend
    return "" if named in OWN_KERNELS else f"kernel_backend {named} runs every model"


@rule(
    "ATT005",
    "kernels-of-another-model",
    severity=Severity.FAIL,
    level=Level.STATIC,
    waivable=False,
    inapplicable=_names_no_own_kernel,
)
def kernels_of_another_model(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Kernels asked for by name that this config cannot run on.

    ## What it does
    `triton` and `fused` run packed bf16 training of a RoPE, RMSNorm and SwiGLU model with heads of 64 on
    CUDA, with the decoder on the targets only, without recomputation and with `attn_backend: auto`, for they
    bring their own attention. Refuses a config that names them and asks for anything else.

    ## Why is this bad?
    The trainer would refuse it too, but only after the machine was rented and the data prepared. Under `auto`
    it takes what runs, and says why.

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
    named, precision = run.config.model.kernel_backend, run.config.trainer.mixed_precision
    obstacle = obstacle_to_own_kernels(run.config)
    if not obstacle and precision != "bf16":
        obstacle = f"it computes in bf16, and this is {precision}"
    if not obstacle and _is_on_a_cpu(run):
        obstacle = "it needs CUDA, and the run has a CPU"
    if named in OWN_KERNELS and obstacle:
        yield Violation(
            KERNELS, f"{named} cannot run this: {obstacle}", "set it to auto, or that key as it needs"
        )


@rule("ATT006", "compiled-loop", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def compiled_loop(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """torch.compile over packed SDPA, which is a loop over documents.

    ## What it does
    Refuses `torch_compile` for packed documents where the attention is SDPA: by name, on a CPU, or in fp32
    unless `flex` is named.

    ## Why is this bad?
    The compiler is asked for one graph of static shapes. A loop whose length is the number of documents is
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
    named, is_half = config.model.attn_backend, config.trainer.mixed_precision == "bf16"
    is_loop = named == "sdpa" or _is_on_a_cpu(run) or (named != "flex" and not is_half)
    if config.trainer.torch_compile and config.datacollator.pack_sequences and is_loop:
        yield Violation(
            COMPILE,
            "packed documents go through SDPA in a loop here, and a loop is no graph to compile",
            "set trainer.torch_compile to false, or run in bf16 on CUDA with attn_backend auto",
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
    """Kernels that `auto` will take for want of the package of faster ones.

    ## What it does
    Says what `auto` will run where a faster kernel is legal on these GPUs and not installed: `triton` without
    quack-kernels on Hopper, torch's modules without Triton, torch's own varlen attention without any
    FlashAttention, this project's attention on long rows without FlashAttention 4.

    ## Why is this bad?
    It is no fault, and the run is as good. Measured on an H200 the fused blocks read 349,000 tokens/s, the
    Triton kernels 326,000 and torch's modules on FlashAttention 4 271,000.

    ## Example
    ```text
    model.kernel_backend: auto, and triton is not installed
    ```

    ## Use instead
    ```text
    pip install triton
    ```
    """
    config, has = run.config, installed(facts)
    is_half, is_hopper = config.trainer.mixed_precision == "bf16", _is_hopper(facts)
    named = config.model.kernel_backend
    if not is_half:
        return
    runs_own = named in OWN_KERNELS or (named == "auto" and not obstacle_to_own_kernels(config))
    if runs_own and named == "auto" and "triton" not in has:
        runs_own = False
        yield Violation(
            KERNELS, "auto will run torch's modules: triton is not installed", "pip install triton"
        )
    elif runs_own and named == "auto" and is_hopper and "quack-kernels" not in has:
        said = "auto will run the triton kernels, not the fused: quack-kernels is not installed"
        yield Violation(KERNELS, said, INSTALL["fused"])
    if config.model.attn_backend == "auto":
        yield from _slower_attention(run, plan, facts, runs_own=runs_own)


def _slower_attention(run: ResolvedRun, plan: Plan, facts: Facts, *, runs_own: bool) -> Violations:
    length = plan.max_length.value
    if runs_own:
        if length > LONG_ROWS and _is_hopper(facts) and "flash-attn-4" not in installed(facts):
            said = f"rows of {length:,} will run on triton_packed: flash-attn-4 is not installed"
            yield Violation(PATH, said, INSTALL["fused"])
        return
    obstacles = [obstacle_to(run, facts, kernel) for kernel in VARLEN["flash_attn_varlen"]]
    if all(obstacles) and not obstacle_to(run, facts, "torch_varlen"):
        said = f"auto will run torch_varlen: {'; '.join(obstacles)}"
        yield Violation(PATH, said, f"{INSTALL['flash']}, or name torch_varlen")


def _is_hopper(facts: Facts) -> bool:
    return bool(facts.gpus) and all(gpu.compute_capability[0] == HOPPER for gpu in facts.gpus or ())
