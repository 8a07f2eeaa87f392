"""Attention rules: block kernels, and attention that torch.compile cannot compile."""

from __future__ import annotations

from neobert.families.table import model_family, requested_kernels
from neobert.kernel_table import (
    BLOCKS,
    OWN_KERNELS,
    WITH_TORCH,
    Kernel,
    Obstacle,
    block_attention,
    find_attention_kernels,
)
from neobert.plan import Plan
from neobert.plan.kernels import block_obstacle, kernel_environment_for
from neobert.precision.table import run_recipe
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.attention import (
    BLOCKS_PATH,
    attention_obstacle,
    install_command,
    kernel_environment,
    missing_package_test,
)

COMPILE = "trainer.torch_compile"


def _device_type(run: ResolvedRun) -> str:
    """Return `cpu` if the profile requires a CPU, otherwise `cuda`."""
    return "cpu" if run.device == "cpu" else "cuda"


def _requests_no_own_kernel(run: ResolvedRun, plan: Plan) -> str:
    requested, _ = requested_kernels(run.config)
    return "" if requested in OWN_KERNELS else f"kernel_backend {requested} supports every model"


@rule(
    "ATT005",
    "kernels-of-another-model",
    severity=Severity.FAIL,
    level=Level.STATIC,
    waivable=False,
    inapplicable=_requests_no_own_kernel,
)
def unsupported_kernels(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    named, _ = requested_kernels(run.config)
    if named in OWN_KERNELS:
        obstacle = block_obstacle(
            BLOCKS[named], run.config, kernel_environment_for(run.config, _device_type(run))
        )
        if obstacle is not None:
            yield Violation(BLOCKS_PATH, obstacle.message, obstacle.hint)


@rule(
    "ATT006",
    "compiled-loop",
    severity=Severity.FAIL,
    level=Level.STATIC,
    waivable=False,
)
def compiled_loop(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """torch.compile with packed SDPA, which loops over documents.

    ## What it does
    Fails if `torch_compile` is true for packed documents and attention runs on SDPA: by name, on a CPU, in
    fp32 unless `flex` is set, or because the model has attention dropout (`model.attention_dropout`).

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
    config, environment = run.config, kernel_environment_for(run.config, _device_type(run))
    kernels = find_attention_kernels(requested_kernels(config)[1], environment.features)
    usable = [kernel for kernel in kernels if not kernel.obstacle(environment._replace(head_size=None))]
    is_loop = all(kernel.program == "loop" for kernel in usable)
    if config.trainer.torch_compile and config.datacollator.pack_sequences and is_loop:
        hint = f"set {COMPILE} to false, or use bf16 on CUDA and {model_family(config).attention_hint}"
        yield Violation(COMPILE, "packed SDPA runs one call per document and cannot be compiled", hint)


def _leaves_nothing_to_auto(run: ResolvedRun, plan: Plan) -> str:
    blocks, attention = requested_kernels(run.config)
    leaves_blocks = blocks == "auto"
    leaves_attention = attention == "auto" and blocks not in OWN_KERNELS
    return "" if leaves_blocks or leaves_attention else "the config sets its kernels explicitly"


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
    The run is correct but slower. Measured on an H200, the fused blocks train 343,000 tokens/s, the
    Triton kernels 328,000, and torch's modules with FlashAttention 4 255,000.

    ## Example
    ```text
    model.kernel_backend: auto, but triton is not installed
    ```

    ## Use instead
    ```text
    pip install triton
    ```
    """
    config = run.config
    if run_recipe(config).is_fp32:
        return
    named, attention = requested_kernels(config)
    runs_own = named in OWN_KERNELS
    if named == "auto":
        usable = [name for name in OWN_KERNELS if not _block_obstacle(run, facts, name)]
        runs_own = bool(usable)
        yield from _slower_blocks(run, facts, usable)
    if attention == "auto":
        yield from _slower_block_attention(run, plan, facts) if runs_own else _slower_attention(run, facts)


def _block_obstacle(run: ResolvedRun, facts: Facts, name: str) -> Obstacle | None:
    """Return the obstacle that prevents block kernels from running on this machine, or None."""
    return block_obstacle(
        BLOCKS[name], run.config, kernel_environment(run, facts), missing_package_test(facts)
    )


def _lacks_packages_only(facts: Facts, kernel: Kernel, without_packages: Obstacle | None) -> bool:
    """Return whether the GPUs support a kernel and only its packages are missing."""
    return without_packages is None and bool(facts.gpus or kernel.majors is None)


def _slower_blocks(run: ResolvedRun, facts: Facts, usable: list[str]) -> Violations:
    for name in OWN_KERNELS:
        obstacle = _block_obstacle(run, facts, name)
        if obstacle is None:
            return
        elsewhere = block_obstacle(BLOCKS[name], run.config, kernel_environment(run, facts))
        if _lacks_packages_only(facts, BLOCKS[name], elsewhere):
            taken = usable[0] if usable else "torch"
            message = f"auto will run {taken}: {obstacle.message}"
            yield Violation(BLOCKS_PATH, message, install_command(BLOCKS[name], facts))
            return


def _slower_block_attention(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    length = plan.max_length.value
    best, other, *_ = block_attention(length)
    obstacle = attention_obstacle(run, facts, best)
    elsewhere = best.obstacle(kernel_environment(run, facts))
    if obstacle is not None and _lacks_packages_only(facts, best, elsewhere):
        message = f"rows of {length:,} tokens will run on {other.name}: {obstacle.message}"
        yield Violation(model_family(run.config).kernel_key, message, install_command(best, facts))


def _slower_attention(run: ResolvedRun, facts: Facts) -> Violations:
    messages, hint = [], ""
    environment = kernel_environment(run, facts)
    for kernel in find_attention_kernels("auto", environment.features, environment.row_length):
        obstacle = attention_obstacle(run, facts, kernel)
        if obstacle is not None:
            messages.append(obstacle.message)
            if _lacks_packages_only(facts, kernel, kernel.obstacle(environment)):
                hint = install_command(kernel, facts)
            continue
        if kernel.packages[0] in WITH_TORCH and hint:
            yield Violation(
                model_family(run.config).kernel_key,
                f"auto will run {kernel.name}: {'; '.join(messages)}",
                hint,
            )
        return
