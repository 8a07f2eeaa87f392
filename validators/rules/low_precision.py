"""Rules of matrix products below bf16: where they run, and whether they gain anything."""

from __future__ import annotations

from neobert.families.table import requested_kernels
from neobert.plan import Plan
from neobert.plurals import listed
from neobert.precision.torchao.spec import INSTALL, PACKAGE, RECIPES, TorchaoRecipe, convertible, layers_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, needed, rule

SECTION, RECIPE, FILTER = "torchao.enable", "torchao.recipe", "torchao.filter_fqns"
LENGTH = "dataset.max_seq_length"
REMOVE = f"set {SECTION} to false"


def is_off(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules of low precision do not apply; empty if they do."""
    return "" if run.config.torchao.enable else f"{SECTION} is false"


def _has_no_gpu_recipe(run: ResolvedRun, plan: Plan) -> str:
    return is_off(run, plan) or (
        f"{run.config.torchao.recipe} runs anywhere" if _recipe(run).is_emulated else ""
    )


def _recipe(run: ResolvedRun) -> TorchaoRecipe:
    return RECIPES[run.config.torchao.recipe]


@rule(
    "PRE005",
    "low-precision-beyond-gpu",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus",),
    inapplicable=_has_no_gpu_recipe,
)
def low_precision_beyond_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe whose matrix products the GPU does not have.

    ## What it does
    Compares the compute capability of every visible GPU with what the recipe needs: `float8_tensorwise` 8.9,
    `float8_rowwise` 9.0, and the scales of `mxfp8` 10.0 to 10.3 (B200, GB300).

    ## Why is this bad?
    torch raises an error in the first step, or torchao falls back to an emulation that is many times slower.

    ## Example
    ```text
    torchao.recipe: mxfp8_rceil on an H100 (compute capability 9.0)
    ```

    ## Use instead
    ```text
    torchao.recipe: float8_rowwise
    ```
    """
    name, recipe = run.config.torchao.recipe, _recipe(run)
    for gpu in facts.gpus or ():
        if not recipe.runs_on(gpu.compute_capability):
            pair = (gpu.compute_capability, recipe.capabilities[0])
            own, first = (".".join(map(str, each)) for each in pair)
            message = f"GPU {gpu.index} ({gpu.name}) has compute capability {own}; {name} needs {first}"
            usable = [each for each, row in RECIPES.items() if row.runs_on(gpu.compute_capability)]
            yield Violation(RECIPE, message, f"set {RECIPE} to {usable[0]}" if usable else REMOVE)


@rule(
    "PRE006",
    "low-precision-uncompiled",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=_has_no_gpu_recipe,
)
def low_precision_uncompiled(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Low-precision matrix products without torch.compile.

    ## What it does
    Requires `trainer.torch_compile` for a recipe that is not emulated.

    ## Why is this bad?
    Each product needs the largest value of its inputs, a scale and a rounding. Without compilation, each of
    these is a pass over memory of its own, which takes longer than the faster product saves.

    ## Example
    ```yaml
    torchao:
      enable: true
    trainer:
      torch_compile: false
    ```

    ## Use instead
    ```yaml
    torchao:
      enable: true
    trainer:
      torch_compile: true
    ```
    """
    if not run.config.trainer.torch_compile:
        key = "trainer.torch_compile"
        message = f"{run.config.torchao.recipe} quantizes the inputs of each product, but {key} is false"
        yield Violation(key, message, f"set {key} to true, or {REMOVE}")


@rule("PRE007", "low-precision-elsewhere", severity=Severity.FAIL, level=Level.STATIC, inapplicable=is_off)
def low_precision_elsewhere(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe in a run for which low precision is not supported.

    ## What it does
    Low precision needs packed rows, bf16 for the rest of the model, and replicated weights. Its layers are
    torch modules: other kernels of the blocks would not call them. An emulated recipe is for tests of a run
    on a machine without such a GPU; in production it would round without being faster.

    ## Why is this bad?
    Converted layers that nothing calls change no result, and a table of runs would credit the recipe with it.
    The tokens of padded rows differ from step to step, and the products need a multiple of 16 of them.

    ## Example
    ```yaml
    model:
      kernel_backend: triton
    torchao:
      enable: true
    ```

    ## Use instead
    ```yaml
    model:
      kernel_backend: auto
    torchao:
      enable: true
    ```
    """
    config, name = run.config, run.config.torchao.recipe
    blocks, _ = requested_kernels(config)
    if blocks != "torch":
        key = "model.kernel_backend"
        yield Violation(key, f"{blocks} kernels do not call the converted layers", f"set {key} to auto")
    if config.trainer.mixed_precision != "bf16":
        key = "trainer.mixed_precision"
        message = f"{name} returns bf16, but {key} is {config.trainer.mixed_precision}"
        yield Violation(key, message, f"set {key} to bf16, or {REMOVE}")
    if not config.datacollator.pack_sequences:
        key = "datacollator.pack_sequences"
        yield Violation(key, f"{name} needs packed rows", f"set {key} to true, or {REMOVE}")
    if config.distributed.mode == "fsdp2":
        key = "distributed.mode"
        yield Violation(key, f"{name} does not support sharded weights", f"set {key} to replicated")
    if config.adapter.type is not None:
        yield Violation(SECTION, f"{name} does not support an adapter", REMOVE)
    if _recipe(run).is_emulated and run.is_production:
        yield Violation(RECIPE, f"{name} rounds as mxfp8 does, at less than the speed of bf16", REMOVE)
    if not _recipe(run).is_emulated and run.device == "cpu":
        yield Violation(RECIPE, f"{name} needs a GPU", f"set {RECIPE} to mxfp8_emulated, or {REMOVE}")


@rule("PRE008", "nothing-in-low-precision", severity=Severity.FAIL, level=Level.STATIC, inapplicable=is_off)
def nothing_in_low_precision(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe that converts no layer, or few.

    ## What it does
    Counts the linear layers of the blocks that are left by `torchao.filter_fqns` and
    `torchao.skip_first_last_linear`. Fails at none of them, and warns below half.

    ## Why is this bad?
    Such a run is a bf16 run under the name of a recipe.

    ## Example
    ```yaml
    torchao:
      enable: true
      filter_fqns: [qkv, wo, w12, w3]
    ```

    ## Use instead
    ```yaml
    torchao:
      enable: true
      filter_fqns: [wo]
    ```
    """
    layers = [*layers_of(plan.shape)]
    converted = len(convertible(run.config.torchao, layers))
    message = f"{run.config.torchao.recipe} converts {converted} of {len(layers)} linear layers of the blocks"
    hint = f"shorten {FILTER}, or {REMOVE}"
    if not converted:
        yield Violation(FILTER, message, hint)
    elif 2 * converted < len(layers):
        yield Violation(FILTER, message, hint, Severity.WARN)


@rule("PRE009", "low-precision-sizes", severity=Severity.FAIL, level=Level.STATIC, inapplicable=is_off)
def low_precision_sizes(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Sizes that the matrix products of a recipe do not support.

    ## What it does
    Requires that the features of every converted layer and the tokens of a microbatch are multiples of 16,
    and for `mxfp8`, which has one scale per 32 values, of 32.

    ## Why is this bad?
    torch refuses such a product in the first step, or in the first backward pass.

    ## Example
    ```yaml
    model:
      hidden_size: 760
      num_attention_heads: 10
    ```

    ## Use instead
    ```yaml
    model:
      hidden_size: 768
      num_attention_heads: 12
    ```
    """
    name, multiple = run.config.torchao.recipe, _recipe(run).multiple
    sizes = {size for each in convertible(run.config.torchao, [*layers_of(plan.shape)]) for size in each[2:]}
    if odd := sorted(size for size in sizes if size % multiple):
        message = f"{name} needs widths divisible by {multiple}, not {listed([str(each) for each in odd])}"
        yield Violation("model", message, f"change model.hidden_size or model.intermediate_size, or {REMOVE}")
    tokens = plan.tokens_per_microbatch.value
    if tokens % multiple:
        message = f"{name} needs a multiple of {multiple} tokens in a microbatch, not {tokens:,}"
        length = max(1, plan.max_length.value // multiple) * multiple
        yield Violation(LENGTH, message, f"set {LENGTH} to {length}, or {REMOVE}")


@rule(
    "PRE010",
    "torchao-missing",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("software",),
    waivable=False,
    inapplicable=is_off,
)
def torchao_missing(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Low precision without the package that computes it.

    ## What it does
    Requires the package torchao if `torchao.enable` is true.

    ## Why is this bad?
    The run would end when it converts its layers, after the text was prepared.

    ## Example
    ```text
    torchao.enable: true, and torchao is not installed
    ```

    ## Use instead
    ```text
    pip install 'torchao>=0.18'
    ```
    """
    if PACKAGE not in needed(facts.software).packages:
        yield Violation(SECTION, f"{SECTION} is true, but torchao is not installed", INSTALL)
