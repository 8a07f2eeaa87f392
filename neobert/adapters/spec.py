"""Layers that have an adapter, and the number of its parameters. Imports neither torch nor peft."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from neobert.config.schema import AdapterConfig, RunConfig
from neobert.families.shape import ModelShape
from neobert.tasks.specs import spec_of

PACKAGE, REQUIREMENT = "peft", "peft>=0.18"
INSTALL = f"pip install '{REQUIREMENT}'"


def target_modules(adapter: AdapterConfig, shape: ModelShape) -> tuple[str, ...]:
    """Return the names of the layers with an adapter, as in `ModelShape.linear_layers`; by default, all.

    A requested name is a full layer name or a suffix, such as `query` for `attention.self.query`.
    """
    requested = adapter.target_modules
    if requested is None:
        return tuple(shape.linear_layers)
    return tuple(
        name for name in shape.linear_layers if any(_selects_layer(each, name) for each in requested)
    )


def unknown_targets(adapter: AdapterConfig, shape: ModelShape) -> Iterator[str]:
    """Yield the requested names that no linear layer of the blocks has."""
    for each in adapter.target_modules or ():
        if not any(_selects_layer(each, name) for name in shape.linear_layers):
            yield each


def _selects_layer(requested: str, name: str) -> bool:
    return name == requested or name.endswith(f".{requested}")


def adapter_parameters(adapter: AdapterConfig, shape: ModelShape) -> int:
    """Return the adapter's parameter count, or 0 without one: r * (inputs + outputs) per layer."""
    if adapter.type is None:
        return 0
    layers = (shape.linear_layers[name] for name in target_modules(adapter, shape))
    return shape.num_layers * adapter.r * sum(each.inputs + each.outputs for each in layers)


def trains_head(config: RunConfig) -> bool:
    """Return whether the head is trained; with an adapter, only a head that predicts labels is."""
    return config.adapter.type is None or not spec_of(config).is_self_supervised


def is_installed() -> bool:
    """Return whether peft is installed, without importing it."""
    return find_spec(PACKAGE) is not None
