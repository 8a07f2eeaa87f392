"""Layers that can have an adapter, and the number of its parameters. Imports neither torch nor peft."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

from neobert.config.schema import ModelConfig, RunConfig
from neobert.families.neobert.spec import feed_forward_width

PACKAGE, REQUIREMENT = "peft", "peft>=0.18"
INSTALL = f"pip install '{REQUIREMENT}'"


class LinearSize(NamedTuple):
    """Number of input and output features of a linear layer."""

    inputs: int
    outputs: int


def linear_layers(config: RunConfig) -> Mapping[str, LinearSize]:
    """Return the linear layers of a NeoBERT block by name suffix; empty for another model family."""
    model = config.model
    if not isinstance(model, ModelConfig):
        return {}
    hidden, width = model.hidden_size, feed_forward_width(model)
    attention = {"qkv": LinearSize(hidden, 3 * hidden), "wo": LinearSize(hidden, hidden)}
    if model.hidden_act == "swiglu":
        return attention | {"w12": LinearSize(hidden, 2 * width), "w3": LinearSize(width, hidden)}
    return attention | {"ffn.0": LinearSize(hidden, width), "ffn.2": LinearSize(width, hidden)}


def target_modules(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the layers with an adapter; by default, all linear layers of the blocks."""
    requested = config.adapter.target_modules
    return tuple(linear_layers(config)) if requested is None else requested


def adapter_parameters(config: RunConfig) -> int:
    """Return the number of parameters of the adapter, or 0 without one: r * (inputs + outputs) per layer."""
    sizes = linear_layers(config)
    if config.adapter.type is None or not isinstance(config.model, ModelConfig):
        return 0
    targets = [sizes[name] for name in target_modules(config) if name in sizes]
    return config.model.num_hidden_layers * config.adapter.r * sum(map(sum, targets))


def is_installed() -> bool:
    """Return whether peft is installed, without importing it."""
    return find_spec(PACKAGE) is not None
