"""Rules of matrix products below bf16: where they run, and whether they gain anything."""

from __future__ import annotations

from neobert.families.table import requested_kernels
from neobert.plan import Plan
from neobert.plurals import listed
from neobert.precision.libraries import conversions_of
from neobert.precision.library import Conversion, layers_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

LENGTH = "dataset.max_seq_length"


def is_off(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules of low precision do not apply; empty if they do."""
    return "" if conversions_of(run.config) else "no section of low precision is enabled"


def enabled_in(run: ResolvedRun) -> Conversion:
    """Return the library that a run enables; rules that call this apply to no other run."""
    return conversions_of(run.config)[0]


def has_no_gpu_recipe(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules of what a GPU computes do not apply; empty if they do."""
    if off := is_off(run, plan):
        return off
    conversion = enabled_in(run)
    return f"{conversion.name} runs anywhere" if conversion.recipe.is_emulated else ""


@rule(
    "PRE006",
    "low-precision-uncompiled",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=has_no_gpu_recipe,
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
    conversion = enabled_in(run)
    if not run.config.trainer.torch_compile:
        key = "trainer.torch_compile"
        message = f"{conversion.name} quantizes the inputs of each product, but {key} is false"
        yield Violation(key, message, f"set {key} to true, or {conversion.remove}")


@rule("PRE007", "low-precision-elsewhere", severity=Severity.FAIL, level=Level.STATIC, inapplicable=is_off)
def low_precision_elsewhere(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe in a run for which low precision is not supported.

    ## What it does
    Low precision needs packed rows, bf16 for the rest of the model, and weights that are replicated, or with
    `float8_tensorwise` gathered in fp8 (`torchao.enable_fsdp_float8_all_gather`). Its layers are torch
    modules: other kernels of the blocks would not call them. An emulated recipe is for tests of a run on a
    machine without such a GPU; in production it would round without being faster.

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
    config, conversion = run.config, enabled_in(run)
    name, recipe, remove = conversion.name, conversion.key("recipe"), conversion.remove
    blocks, _ = requested_kernels(config)
    if blocks != "torch":
        key = "model.kernel_backend"
        yield Violation(key, f"{blocks} kernels do not call the converted layers", f"set {key} to auto")
    if config.trainer.mixed_precision != "bf16":
        key = "trainer.mixed_precision"
        message = f"{name} returns bf16, but {key} is {config.trainer.mixed_precision}"
        yield Violation(key, message, f"set {key} to bf16, or {remove}")
    if not config.datacollator.pack_sequences:
        key = "datacollator.pack_sequences"
        yield Violation(key, f"{name} needs packed rows", f"set {key} to true, or {remove}")
    yield from _of_shards(run, conversion)
    if config.adapter.type is not None:
        yield Violation(conversion.key("enable"), f"{name} does not support an adapter", remove)
    if conversion.recipe.is_emulated and run.is_production:
        yield Violation(recipe, f"{name} rounds as mxfp8 does, at less than the speed of bf16", remove)
    if not conversion.recipe.is_emulated and run.device == "cpu":
        emulated = [each for each, row in conversion.library.recipes.items() if row.is_emulated]
        hint = f"set {recipe} to {emulated[0]}, or {remove}" if emulated else remove
        yield Violation(recipe, f"{name} needs a GPU", hint)


def _of_shards(run: ResolvedRun, conversion: Conversion) -> Violations:
    mode, gathers = "distributed.mode", conversion.library.gathers_key
    is_sharded = run.config.distributed.mode == "fsdp2"
    if is_sharded and not conversion.gathers_low:
        message, hint = f"{conversion.name} does not support sharded weights", f"set {mode} to replicated"
        readers = [name for name, row in conversion.library.recipes.items() if gathers in row.reads]
        if readers:
            edits = f"set {conversion.key('recipe')} to {readers[0]} and {conversion.key(gathers)} to true"
            hint = f"{edits}, or {hint}"
        yield Violation(mode, message, hint)
    if conversion.gathers_low and not is_sharded:
        key = conversion.key(gathers)
        yield Violation(key, f"{key} needs sharded weights", f"set {mode} to fsdp2, or set {key} to false")


@rule("PRE008", "nothing-in-low-precision", severity=Severity.FAIL, level=Level.STATIC, inapplicable=is_off)
def nothing_in_low_precision(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe that converts no layer, or few.

    ## What it does
    Counts the linear layers of the blocks that are left by `filter_fqns` and `skip_first_last_linear`. Fails
    at none of them, and warns below half.

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
    layers, conversion = [*layers_of(plan.shape)], enabled_in(run)
    converted, key = len(conversion.convertible(layers)), conversion.key("filter_fqns")
    message = f"{conversion.name} converts {converted} of {len(layers)} linear layers of the blocks"
    hint = f"shorten {key}, or {conversion.remove}" if conversion.section.filter_fqns else conversion.remove
    if not converted:
        yield Violation(key, message, hint)
    elif 2 * converted < len(layers):
        yield Violation(key, message, hint, Severity.WARN)


@rule("PRE009", "low-precision-sizes", severity=Severity.FAIL, level=Level.STATIC, inapplicable=is_off)
def low_precision_sizes(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Sizes that the matrix products of a recipe do not support.

    ## What it does
    Requires that the features of every converted layer and the tokens of a microbatch are multiples of 16,
    for `mxfp8`, which has one scale per 32 values, of 32, for Transformer Engine's `nvfp4` of 64, and for
    torchao's `nvfp4` and `quartet_ii` of 128.

    ## Why is this bad?
    The library refuses such a product in the first step, or in the first backward pass.

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
    conversion = enabled_in(run)
    name, multiple, remove = conversion.name, conversion.recipe.multiple, conversion.remove
    sizes = {size for each in conversion.convertible([*layers_of(plan.shape)]) for size in each[2:]}
    if odd := sorted(size for size in sizes if size % multiple):
        message = f"{name} needs widths divisible by {multiple}, not {listed([str(each) for each in odd])}"
        yield Violation("model", message, f"change model.hidden_size or model.intermediate_size, or {remove}")
    tokens = plan.tokens_per_microbatch.value
    if tokens % multiple:
        message = f"{name} needs a multiple of {multiple} tokens in a microbatch, not {tokens:,}"
        length = max(1, plan.max_length.value // multiple) * multiple
        yield Violation(LENGTH, message, f"set {LENGTH} to {length}, or {remove}")
