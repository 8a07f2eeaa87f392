"""Low-precision rules: supported runs, libraries, sizes and speed of recipes below bf16."""

from __future__ import annotations

from neobert.families.shape import ModelShape
from neobert.families.table import requested_kernels
from neobert.plan import Plan
from neobert.plan.hardware import find_card
from neobert.plurals import listed
from neobert.precision.libraries import enabled_conversions
from neobert.precision.library import UNBOUNDED, Conversion, LowPrecisionRecipe, Version, list_linear_layers
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import require_measured, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule, require_group, rule

LENGTH = "dataset.max_seq_length"

MAX_TIME = 0.97
"""Maximum step time relative to bf16; a smaller gain is within measurement noise."""
MAX_LOSS_CHANGE = 0.01
"""Maximum relative change of the loss. float8_rowwise: 0.06 % at 245M parameters, 0.16 % at 1.3 billion."""


def why_no_low_precision(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why low-precision rules do not apply; empty if they apply."""
    return "" if enabled_conversions(run.config) else "no section of low precision is enabled"


def enabled_conversion(run: ResolvedRun) -> Conversion:
    """Return the conversion that a run enables. Only for rules that apply to runs with a conversion."""
    return enabled_conversions(run.config)[0]


def why_no_gpu_recipe(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about GPU recipes do not apply; empty if they apply."""
    if off := why_no_low_precision(run, plan):
        return off
    conversion = enabled_conversion(run)
    if conversion.recipe.is_emulated:
        return f"{conversion.name} is emulated"
    return "" if run.device == "cuda" else "the run uses no GPU"


@rule(
    "PRE007",
    "low-precision-elsewhere",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=why_no_low_precision,
)
def low_precision_elsewhere(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A low-precision recipe in a run that does not support it.

    ## What it does
    Low precision needs packed rows, bf16 for the rest of the model, and weights that are replicated, or with
    `float8_tensorwise` gathered in fp8 (`torchao.enable_fsdp_float8_all_gather`). Its layers are torch
    modules: other kernels of the blocks would not call them. On a GPU it needs `trainer.torch_compile`:
    without it, scaling and rounding each product are separate passes over memory. An emulated recipe is for
    tests of a run on a machine without such a GPU; in production it would round without being faster. At most
    one of the sections `torchao`, `transformer_engine` and `quartet2` may be enabled: each converts the same
    layers. The GPU that the profile requires has to have the recipe's products (PRE005 compares the GPUs of
    the machine).

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
    config, (conversion, *others) = run.config, enabled_conversions(run.config)
    name, recipe, remove = conversion.name, conversion.key("recipe"), conversion.disable_hint
    for other in others:
        key = other.key("enable")
        yield Violation(key, f"{key} and {conversion.key('enable')} are both true", other.disable_hint)
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
    if not why_no_gpu_recipe(run, plan) and not config.trainer.torch_compile:
        key = "trainer.torch_compile"
        message = f"{name} scales and rounds the inputs of each product in extra passes if {key} is false"
        yield Violation(key, message, f"set {key} to true, or {remove}")
    yield from _sharding_violations(run, conversion)
    if config.adapter.type is not None:
        yield Violation(conversion.key("enable"), f"{name} does not support an adapter", remove)
    if conversion.recipe.is_emulated and run.is_production:
        yield Violation(recipe, f"{name} rounds as mxfp8 does, at less than the speed of bf16", remove)
    if not conversion.recipe.is_emulated and run.device == "cpu":
        emulated = [each for each, row in conversion.library.recipes.items() if row.is_emulated]
        hint = f"set {recipe} to {emulated[0]}, or {remove}" if emulated else remove
        yield Violation(recipe, f"{name} needs a GPU", hint)
    if facts.gpus is None and not why_no_gpu_recipe(run, plan):  # PRE005 reports the GPUs of this machine
        yield from _required_gpu_violations(run, conversion)


def _required_gpu_violations(run: ResolvedRun, conversion: Conversion) -> Violations:
    """Yield the error for a recipe that the GPU of the profile does not have, before the run is queued."""
    gpu = run.profile.requires.gpu if run.profile else None
    capability = find_card(gpu).capability if gpu else None
    if capability and not conversion.recipe.runs_on(capability):
        required = f"the profile requires the GPU {gpu} (compute capability {_format_version(capability)})"
        message = f"{required}; {conversion.name} needs {_required_capability(conversion.recipe)}"
        yield Violation(conversion.key("recipe"), message, _usable_recipe(conversion, capability))


def _required_capability(recipe: LowPrecisionRecipe) -> str:
    first, beyond = recipe.capabilities
    least = _format_version(first)
    return least if beyond == UNBOUNDED else f"{least} to below {_format_version(beyond)}"


def _usable_recipe(conversion: Conversion, capability: Version) -> str:
    """Return the hint to use the library's first recipe for the GPU, or none."""
    rows = conversion.library.recipes.items()
    usable = [name for name, recipe in rows if recipe.runs_on(capability)]
    return f"set {conversion.key('recipe')} to {usable[0]}" if usable else conversion.disable_hint


def _sharding_violations(run: ResolvedRun, conversion: Conversion) -> Violations:
    mode, gathers = "distributed.mode", conversion.library.gathers_key
    is_sharded = run.config.distributed.mode == "fsdp2"
    if is_sharded and not conversion.gathers_low_precision:
        message, hint = f"{conversion.name} does not support sharded weights", f"set {mode} to replicated"
        # The emulated recipes of a CPU gather nothing.
        recipes = {} if run.device == "cpu" else conversion.library.recipes
        readers = [name for name, row in recipes.items() if gathers in row.reads]
        if conversion.name in readers:
            message = f"{conversion.name} with sharded weights needs {conversion.key(gathers)}"
            hint = f"set {conversion.key(gathers)} to true, or {hint}"
        elif readers:
            edits = f"set {conversion.key('recipe')} to {readers[0]} and {conversion.key(gathers)} to true"
            hint = f"{edits}, or {hint}"
        yield Violation(mode, message, hint)
    if conversion.gathers_low_precision and not is_sharded:
        key = conversion.key(gathers)
        yield Violation(key, f"{key} needs sharded weights", f"set {mode} to fsdp2, or set {key} to false")


@rule(
    "PRE008",
    "nothing-in-low-precision",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=why_no_low_precision,
)
def nothing_in_low_precision(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe that converts few layers, or none.

    ## What it does
    Counts the linear layers of the blocks that are left by `filter_fqns` and `skip_first_last_linear`. Fails
    if none is left, and warns if fewer than half are.

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
    layers, conversion = [*list_linear_layers(plan.shape)], enabled_conversion(run)
    name, remove = conversion.name, conversion.disable_hint
    if not layers:
        message = f"the blocks of {plan.shape.architecture} have no linear layers that {name} can convert"
        yield Violation(conversion.key("enable"), message, remove)
        return
    converted, key = len(conversion.select_layers(layers)), conversion.key("filter_fqns")
    message = f"{name} converts {converted} of {len(layers)} linear layers of the blocks"
    hint = f"shorten {key}, or {remove}" if conversion.section.filter_fqns else remove
    if not converted:
        yield Violation(key, message, hint)
    elif 2 * converted < len(layers):
        yield Violation(key, message, hint, Severity.WARN)


@rule(
    "PRE009",
    "low-precision-sizes",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=why_no_low_precision,
)
def low_precision_sizes(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Sizes that the matrix products of a recipe do not support.

    ## What it does
    Requires that the features of every converted layer and the tokens of a microbatch are multiples of 16; of
    32 for `mxfp8`, which has one scale per 32 values; of 64 for Transformer Engine's `nvfp4`; and of 128 for
    torchao's `nvfp4` and `quartet_ii`.

    ## Why is this bad?
    The library rejects such a product in the first step, or in the first backward pass.

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
    conversion = enabled_conversion(run)
    name, multiple, remove = conversion.name, conversion.recipe.multiple, conversion.disable_hint
    sizes = {
        size for each in conversion.select_layers([*list_linear_layers(plan.shape)]) for size in each[2:]
    }
    if odd := sorted(size for size in sizes if size % multiple):
        message = f"{name} needs widths divisible by {multiple}, not {listed([str(each) for each in odd])}"
        yield Violation("model", message, f"change {_uneven_width_keys(plan.shape, multiple)}, or {remove}")
    tokens = plan.tokens_per_microbatch.value
    if tokens % multiple:
        message = f"{name} needs a multiple of {multiple} tokens in a microbatch, not {tokens:,}"
        length = max(1, plan.max_length.value // multiple) * multiple
        yield Violation(LENGTH, message, f"set {LENGTH} to {length}, or {remove}")


def _uneven_width_keys(shape: ModelShape, multiple: int) -> str:
    """Return the keys of widths that are not divisible by `multiple`, for a hint."""
    wide = f"model.intermediate_size (the feed-forward is {shape.feed_forward_width} wide)"
    widths = {"model.hidden_size": shape.hidden_size, wide: shape.feed_forward_width}
    return " and ".join(key for key, width in widths.items() if width % multiple) or "the heads of attention"


def _format_version(version: Version) -> str:
    return ".".join(map(str, version))


@rule(
    "PRE005",
    "low-precision-beyond-gpu",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus", "software"),
    inapplicable=why_no_gpu_recipe,
)
def _low_precision_beyond_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe whose matrix products the GPU does not have.

    ## What it does
    Compares the compute capability of every visible GPU, and the CUDA version of torch's build, with what the
    recipe needs. An H100 (9.0) runs `float8_*`, `fp8_current` and, from CUDA 12.9, `fp8_block`. A B200 (10.0)
    runs `mxfp8*` and `nvfp4` too, a GPU of capability 12.0 `quartet_ii` and Transformer Engine's `nvfp4`.

    ## Why is this bad?
    The library raises an error in the first step, or emulates the products, which is many times slower.

    ## Example
    ```text
    torchao.recipe: mxfp8_rceil on an H100 (compute capability 9.0)
    ```

    ## Use instead
    ```text
    torchao.recipe: float8_rowwise
    ```
    """
    conversion = enabled_conversion(run)
    name, recipe, key = conversion.name, conversion.recipe, conversion.key("recipe")
    for gpu in facts.gpus or ():
        if not recipe.runs_on(gpu.compute_capability):
            capability = _format_version(gpu.compute_capability)
            own = f"GPU {gpu.index} ({gpu.name}) has compute capability {capability}"
            hint = _usable_recipe(conversion, gpu.compute_capability)
            yield Violation(key, f"{own}; {name} needs {_required_capability(recipe)}", hint)
    built = require_group(facts.software).torch_cuda
    if built and tuple(map(int, built.split(".")[:2])) < recipe.min_cuda:
        least = _format_version(recipe.min_cuda)
        message = f"torch is built for CUDA {built}; {name} needs {least}"
        yield Violation(key, message, f"install torch for CUDA {least}, or {conversion.disable_hint}")


@rehearsal_rule("PRE011", "low-precision-slower", severity=Severity.FAIL, inapplicable=why_no_gpu_recipe)
def _low_precision_slower(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe that is not faster than bf16.

    ## What it does
    Rehearses the run and the same run without the section, on the kernels that `kernel_backend: auto` then
    chooses, in turns on one device. Fails if a step takes more than 97 % of the time in bf16; in development
    and smoke runs, it warns. Emulated recipes are not meant to be faster.

    ## Why is this bad?
    Low precision costs accuracy, and only its speed pays for it. Quantizing the inputs of each product takes
    time too: at widths of 768 and 2,048, more than the products save on an H100. This project's kernels do
    not run with a recipe.

    ## Example
    ```text
    a step takes 399 ms with float8_rowwise (torch, torch_varlen) and 238 ms in bf16 (triton, triton_packed)
    ```

    ## Use instead
    ```text
    torchao.enable: false
    ```
    """
    compared = require_measured(require_rehearsal(facts).low_precision, facts, "the speed in bf16")
    conversion = enabled_conversion(run)
    if compared.recipe_step_s > MAX_TIME * compared.bf16_step_s:
        message = (
            f"a step takes {1000 * compared.recipe_step_s:.3g} ms with {conversion.name} "
            f"({compared.recipe_kernels}) and {1000 * compared.bf16_step_s:.3g} ms in bf16 "
            f"({compared.bf16_kernels}; limit {MAX_TIME:.0%})"
        )
        severity = None if run.is_production else Severity.WARN
        yield Violation(conversion.key("enable"), message, conversion.disable_hint, severity)


@rehearsal_rule(
    "PRE012", "low-precision-changes-loss", severity=Severity.FAIL, inapplicable=why_no_low_precision
)
def _low_precision_changes_loss(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe that changes the loss from the start.

    ## What it does
    Compares the loss of steps 9 to 16 with the loss of the same steps in bf16, from the same weights on the
    same text. Fails if they differ by more than 1 %, or if a loss is not finite.

    ## Why is this bad?
    Rounding to fp8 changed the loss of such steps by at most 0.2 %. More means that values overflow, or that
    a layer that needs more precision was converted.

    ## Example
    ```text
    loss 7.31 with float8_tensorwise, 7.02 in bf16
    ```

    ## Use instead
    ```yaml
    torchao:
      recipe: float8_rowwise
    ```
    """
    compared = require_measured(require_rehearsal(facts).low_precision, facts, "the loss in bf16")
    own, other, conversion = compared.recipe_loss, compared.bf16_loss, enabled_conversion(run)
    name, key, remove = conversion.name, conversion.key("enable"), conversion.disable_hint
    if other is None:
        raise CannotTellError("the loss in bf16 is not finite")
    if own is None:
        yield Violation(key, f"the loss is not finite with {name}, and {other:.4g} in bf16", remove)
    elif abs(own / other - 1) > MAX_LOSS_CHANGE:
        message = f"the loss of steps 9 to 16 is {own:.4g} with {name} and {other:.4g} in bf16"
        yield Violation(key, f"{message} (limit {MAX_LOSS_CHANGE:.0%})", remove)
