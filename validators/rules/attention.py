"""Attention rules: requested kernel, isolation of packed documents, and the kernel that each block ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from neobert.families.table import model_family, requested_kernels
from neobert.kernel_table import (
    ATTENTION,
    BLOCKS,
    OWN_KERNELS,
    AttentionKernel,
    Environment,
    Gpu,
    Kernel,
    Obstacle,
    Package,
    find_attention_kernels,
    install_line,
)
from neobert.plan import Plan
from neobert.plan.kernels import kernel_environment_for
from neobert.precision.table import run_recipe
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import require_measured, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule, rule

if TYPE_CHECKING:
    from validators.facts_rehearsal import DispatchFacts


BLOCKS_PATH = "model.kernel_backend"


def _device_type(run: ResolvedRun) -> str:
    return run.device or "cpu"


@rule("ATT003", "packing-without-isolation", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def packing_without_isolation(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Packed documents with an attention kernel that cannot separate them on this device or precision.

    ## What it does
    Packing needs document boundaries inside the kernel: a varlen kernel on CUDA in bf16, or segmented SDPA on
    any device. Fails if a varlen kernel is set but the profile has no GPU or the run computes in fp32 (for
    padded rows too: the trainer rejects them), and if `flex` is set without a GPU, where it has no backward
    pass, or if no kernel computes the model's attention (its direction, windows, heads, scale and soft cap).
    `auto` selects a supported kernel. If the run was rehearsed, also fails if a packed microbatch came
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
    _, named = requested_kernels(run.config)
    environment = kernel_environment_for(run.config, _device_type(run))._replace(head_size=None)
    # Kernels that one value selects share device and type, so the message can name that value.
    kernels = [
        replace(kernel, name=named)
        for kernel in find_attention_kernels(named, environment.features)
        if not (kernel.needs_cpu and environment.device == "cuda")
    ]
    kernels += [ATTENTION["sdpa"]] if named == "auto" else []  # which remains where no other kernel runs
    obstacles = [each for kernel in kernels if (each := kernel.obstacle(environment)) is not None]
    if len(obstacles) == len(kernels):
        yield Violation(model_family(run.config).kernel_key, obstacles[0].message, obstacles[0].hint)


@rule(
    "ATT004",
    "flash-off",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=lambda run, _plan: "sdpa is the reference of smoke runs" if run.is_smoke else "",
)
def flash_off(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run on GPUs without a flash attention kernel.

    ## What it does
    Fails a production run on GPUs, and warns about another one, if packed documents run on `sdpa`, which then
    has one call per document: `model.attn_backend` names it, or a transformers encoder has attention dropout
    (0.1 in a BERT, unless `model.attention_dropout` is 0), which no other kernel computes. On a CPU, and in
    smoke runs that compare against it, `sdpa` is the reference. Padded rows use it everywhere.

    ## Why is this bad?
    Measured on an H200 with packed rows of 1024 tokens, the loop reached 3.5 % of the matrix peak; varlen
    kernels were more than ten times faster on the same work. Without attention dropout a model trains
    with less regularization, as NeoBERT and ModernBERT do.

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
    is_packed, (_, named) = run.config.datacollator.pack_sequences, requested_kernels(run.config)
    is_loop = all(kernel.program == "loop" for kernel in find_attention_kernels(named))
    if _device_type(run) == "cuda" and is_packed and is_loop:
        family = model_family(run.config)
        cause = f": {family.attention_reason}" if family.attention_key != family.kernel_key else ""
        message = f"{named} runs packed documents one call at a time, without flash attention{cause}"
        severity = None if run.is_production else Severity.WARN
        yield Violation(family.attention_key, message, family.attention_hint, severity)


def _reason_kernel_runs_anywhere(run: ResolvedRun, plan: Plan) -> str:
    _, named = requested_kernels(run.config)
    runs_anywhere = any(
        not (kernel.needs_cuda or kernel.needs_cpu) for kernel in find_attention_kernels(named)
    )
    return f"{named} runs on every device" if runs_anywhere else ""


@rule(
    "ATT001",
    "unavailable-attention",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus", "software"),
    inapplicable=_reason_kernel_runs_anywhere,
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
    named_blocks, named = requested_kernels(run.config)
    blocks = BLOCKS.get(named_blocks)
    if blocks is not None and blocks.replaces_blocks:
        obstacle = blocks.obstacle(kernel_environment(run, facts), missing_package_test(facts))
        if obstacle is not None:
            yield Violation(BLOCKS_PATH, obstacle.message, obstacle.hint)
    features = plan.shape.attention.features
    kernels = [kernel for kernel in find_attention_kernels(named, features) if not kernel.needs_cpu]
    obstacles = [each for kernel in kernels if (each := attention_obstacle(run, facts, kernel)) is not None]
    is_judged = run.is_production or named != "auto"
    if is_judged and len(obstacles) == len(kernels):
        messages = "; ".join(dict.fromkeys(each.message for each in obstacles))
        helps = named != "auto" and any(
            attention_obstacle(run, facts, kernel) is None
            for kernel in find_attention_kernels("auto", features)
        )
        hint = obstacles[-1].hint if helps else _hint_without_auto(run, facts, kernels[-1])
        yield Violation(model_family(run.config).kernel_key, messages, hint)


def _hint_without_auto(run: ResolvedRun, facts: Facts, kernel: AttentionKernel) -> str:
    """Return the hint for a kernel that cannot run if `auto` would not help either."""
    if run_recipe(run.config).is_fp32:
        return "set trainer.mixed_precision to bf16"
    return install_command(kernel, facts) or "use a GPU with compute capability 8.0 or later"


def kernel_environment(run: ResolvedRun, facts: Facts) -> Environment:
    """Return the environment for kernel selection, with the GPUs that the facts list."""
    gpus = facts.gpus or ()
    known = tuple(Gpu(f"GPU {gpu.index} ({gpu.name})", gpu.compute_capability) for gpu in gpus)
    return kernel_environment_for(run.config, "cuda", known)


def missing_package_test(facts: Facts) -> Callable[[Package], bool]:
    """Return a predicate that is True for packages that the facts do not list as installed."""
    packages = facts.software.packages if facts.software else {}
    installed = {name.lower().replace("_", "-") for name in packages}
    return lambda package: package.name not in installed


def install_command(kernel: Kernel, facts: Facts) -> str:
    """Return the command that installs the first missing package of a kernel, or "" if none is missing."""
    return next(map(install_line, filter(missing_package_test(facts), kernel.packages)), "")


def attention_obstacle(run: ResolvedRun, facts: Facts, kernel: AttentionKernel) -> Obstacle | None:
    """Return the obstacle that prevents an attention kernel from running on this machine, or None."""
    return kernel.obstacle(kernel_environment(run, facts), missing_package_test(facts))


@rehearsal_rule("ATT002", "other-attention-ran", severity=Severity.FAIL)
def other_attention_ran(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A block that ran a different attention kernel from the requested one.

    ## What it does
    Each block reports at run time the kernel that it calls. The rule compares that with the resolved
    kernel and with `model.attn_backend`. Blocks compiled into one graph report once.

    ## Why is this bad?
    Libraries fall back silently: the run is slow, or its packed documents attend to each other,
    while the config still names the kernel that should have run.

    ## Example
    ```text
    flash_attn_varlen was requested, block 3 ran sdpa
    ```

    ## Use instead
    ```text
    model.attn_backend: auto; `neobert-launch rule ATT001` lists what each kernel needs
    ```
    """
    dispatch = require_measured(require_rehearsal(facts).attention, facts, "the attention kernel")
    family = model_family(run.config)
    if not any(dispatch.ran):
        raise CannotTellError("no block reported the attention kernel that it ran")
    for kernel, blocks in _blocks_by_unexpected_kernel(dispatch).items():
        message = f"{dispatch.resolved} was resolved, but {_format_blocks(blocks)} ran {kernel}"
        hint = family.kernel_hint or "set model.attn_backend to auto; see neobert-launch rule ATT001"
        yield Violation(family.kernel_key, message, hint)
    silent = [number for number, kernel in enumerate(dispatch.ran) if not kernel]
    if silent and not run.config.trainer.torch_compile:
        raise CannotTellError(f"{_format_blocks(silent)} did not report which attention kernel ran")
    _, requested = requested_kernels(run.config)
    expected = [kernel.name for kernel in find_attention_kernels(requested)]
    is_own = plan.kernels.value in OWN_KERNELS
    if requested != "auto" and not is_own and dispatch.resolved not in expected:
        message = f"{requested} was requested, but {dispatch.resolved} was resolved"
        yield Violation(
            family.kernel_key, message, "set model.attn_backend to auto, or to a kernel that runs here"
        )


def _blocks_by_unexpected_kernel(dispatch: DispatchFacts) -> dict[str, list[int]]:
    """Return the block numbers by kernel, for kernels other than the resolved one."""
    blocks: dict[str, list[int]] = {}
    for number, kernel in enumerate(dispatch.ran):
        if kernel and kernel != dispatch.resolved:
            blocks.setdefault(kernel, []).append(number)
    return blocks


def _format_blocks(numbers: list[int]) -> str:
    return f"block{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
