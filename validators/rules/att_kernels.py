"""ATT: the kernels of the blocks, and what torch.compile can make of the attention."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.plan.kernels import OWN_KERNELS, obstacle_to_own_kernels
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

KERNELS = "model.kernel_backend"
COMPILE = "trainer.torch_compile"


def _is_on_a_cpu(run: ResolvedRun) -> bool:
    return run.profile is not None and run.profile.requires.device == "cpu"


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
    Refuses `torch_compile` for packed documents where the attention is SDPA: by name, on a CPU, or in fp32.

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
    is_loop = (
        config.model.attn_backend == "sdpa" or _is_on_a_cpu(run) or config.trainer.mixed_precision != "bf16"
    )
    if config.trainer.torch_compile and config.datacollator.pack_sequences and is_loop:
        yield Violation(
            COMPILE,
            "packed documents go through SDPA in a loop here, and a loop is no graph to compile",
            "set trainer.torch_compile to false, or run in bf16 on CUDA with attn_backend auto",
        )
