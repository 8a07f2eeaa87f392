"""Prediction of the kernels that a config will use, without the machine and its packages."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from neobert.config.schema import RunConfig
from neobert.families.neobert.spec import feed_forward_width, model_section
from neobert.families.table import (
    max_row_length,
    model_family,
    model_shape,
    padded_attention,
    requested_kernels,
)
from neobert.kernel_table import (
    BLOCKS,
    OWN_KERNELS,
    WITH_TORCH,
    BlockKernel,
    Environment,
    Gpu,
    Obstacle,
    Package,
    block_attention,
    find_attention_kernels,
)
from neobert.plan.derived import Derived, Values
from neobert.plan.hardware import Assumptions, find_card
from neobert.precision.libraries import enabled_conversion
from neobert.precision.library import list_linear_layers
from neobert.precision.table import run_recipe
from neobert.tasks.specs import spec_of

TRAINING_FLOPS = 6
"""FLOPs per token and weight of a linear layer: its product, and the gradients of input and weight."""


def exchange_overlaps(kernels: str) -> bool:
    """Return whether these kernels overlap the gradient all-reduce with the backward pass."""
    return BLOCKS[kernels].overlaps_exchange


def kernel_environment_for(config: RunConfig, device: str, gpus: tuple[Gpu, ...] = ()) -> Environment:
    """Return the environment in which a config's kernels run; `device` is "cuda" or "cpu"."""
    attention = model_shape(config, 1).attention
    dtype, length = run_recipe(config).dtype, max_row_length(config)
    return Environment(device, dtype, attention.head_size, gpus, attention.features, length)


def block_obstacle(
    kernel: BlockKernel,
    config: RunConfig,
    environment: Environment,
    is_missing: Callable[[Package], bool] = lambda _: False,
) -> Obstacle | None:
    """Return the first obstacle to running a config with these block kernels, or None if they can run it.

    `is_missing` returns whether a required package is not installed; by default all are assumed installed.
    """
    to_auto = f"{kernel.KEY} to auto"
    predicted = spec_of(config).predicts
    if kernel.predicts not in ("", predicted):
        message = f"{kernel.name} predicts {kernel.predicts} tokens, but task {config.task} does not"
        return Obstacle(message, f"set {to_auto}")
    for key, needed in kernel.keys:
        value = attrgetter(key)(config)
        if value != needed:
            message = f"{kernel.name} needs {key}: {_format_value(needed)}, not {_format_value(value)}"
            return Obstacle(message, f"set {key} to {_format_value(needed)}, or {to_auto}")
    model = model_section(config)
    for key, width in (("hidden_size", model.hidden_size), ("intermediate_size", feed_forward_width(model))):
        if width % kernel.width_multiple:
            message = f"{kernel.name} needs widths divisible by {kernel.width_multiple}, not {width}"
            hint = f"set model.{key} to a multiple of {kernel.width_multiple}, or set {to_auto}"
            return Obstacle(message, hint)
    # Not rounded down: heads that do not divide the width fit no kernel of this project.
    exact = environment._replace(head_size=model.hidden_size / model.num_attention_heads)
    return kernel.obstacle(exact, is_missing)


def _format_value(value: object) -> str:
    return str(value).lower()


def plan_kernels(config: RunConfig, assumptions: Assumptions, flops_per_token: float) -> Values:
    """Derive the kernels, assuming that optional packages are installed, and the gain of low precision.

    `flops_per_token`: FLOPs per token of a training step.
    """
    gpus: tuple[Gpu, ...] = ()
    if assumptions.is_cuda:
        gpus = (Gpu(assumptions.device_name, find_card(assumptions.device_name).capability),)
    environment = kernel_environment_for(config, "cuda" if assumptions.is_cuda else "cpu", gpus)
    kernels = _derive_kernels(config, environment, assumptions.device_name)
    return {
        "kernels": kernels,
        "attention": _derive_attention(config, environment, kernels.value),
        "low_precision": _derive_low_precision(config, gpus, flops_per_token),
    }


def _derive_low_precision(config: RunConfig, gpus: tuple[Gpu, ...], flops_per_token: float) -> Derived[str]:
    conversion = enabled_conversion(config)
    if conversion is None:
        return Derived("", "no section of low precision is enabled")
    layers, recipe = [*list_linear_layers(model_shape(config, 1))], conversion.recipe
    converted = conversion.select_layers(layers)
    weights = sum(each.inputs * each.outputs for each in converted)
    share = TRAINING_FLOPS * weights * spec_of(config).passes(config).trained / flops_per_token
    text = f"{conversion.name} in {len(converted)} of {len(layers)} linear layers"
    keys = " and ".join(map(conversion.key, ("filter_fqns", "skip_first_last_linear")))
    reason = f"linear layers of the blocks, except those that {keys} exclude"
    lacking = [gpu.label for gpu in gpus if not recipe.runs_on(gpu.capability)]
    if lacking and not recipe.is_emulated:
        text += f", not supported on {lacking[0]}"
    elif not recipe.is_emulated:
        gain = 1 / (1 - share * (1 - 1 / recipe.rate))
        text += f", at most {gain:.2f} times as fast if rounding took no time"
        reason += f"; {share:.0%} of the FLOPs, at {recipe.rate:g} times the peak of bf16"
    note = "" if recipe.was_run else ", never run by this project"
    return Derived(text + note, reason)


def _derive_kernels(config: RunConfig, environment: Environment, device_name: str) -> Derived[str]:
    named, _ = requested_kernels(config)
    if named != "auto":
        conversion = enabled_conversion(config)
        converts = conversion and f"{conversion.library.name} converts torch modules"
        given = converts or "model.kernel_backend as given"
        return Derived(named, model_family(config).modules or given)
    obstacles: list[str] = []
    for name in OWN_KERNELS:
        obstacle = block_obstacle(BLOCKS[name], config, environment)
        if obstacle is None:
            packages = " and ".join(package.name for package in BLOCKS[name].packages)
            return Derived(name, "; ".join([f"auto on {device_name}, with {packages}", *obstacles]))
        obstacles.append(obstacle.message)
    return Derived("torch", f"auto: {'; '.join(obstacles)}")


def _derive_attention(config: RunConfig, environment: Environment, kernels: str) -> Derived[str]:
    length = max_row_length(config)
    if kernels in OWN_KERNELS:
        choices = block_attention(length)
        best = next((kernel for kernel in choices if not kernel.obstacle(environment)), choices[0])
        return Derived(best.name, f"best for {kernels} kernels and rows of {length} tokens")
    if not config.datacollator.pack_sequences:
        reason = model_family(config).modules or "padded rows use SDPA for any model.attn_backend"
        return Derived(padded_attention(config), reason)
    _, named = requested_kernels(config)
    if named != "auto":
        return Derived(named, model_family(config).attention_reason)
    tried = find_attention_kernels("auto", environment.features, length)
    obstacles = {kernel.name: kernel.obstacle(environment) for kernel in tried}
    there = {kernel.name for kernel in tried if kernel.packages[0] in WITH_TORCH}
    messages = [each.message for name, each in obstacles.items() if each and name in there]
    usable = [name for name, each in obstacles.items() if each is None]
    if usable and length <= tried[0].longest_segment and usable[0] == tried[0].name:
        return Derived(usable[0], f"auto: best for rows of {length} tokens")
    if there.isdisjoint(usable):
        return Derived("sdpa", f"auto: {messages[0]}")
    chosen = next(name for name in usable if name in there)
    others = " or ".join(name for name in usable if name not in there)
    return Derived(chosen, "; ".join(["auto: PyTorch's kernel", *messages, f"{others} if installed"]))
