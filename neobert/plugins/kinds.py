"""Kinds of plug-ins: config key and parameters. Imports no torch and no numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from neobert.config.schema import PluginsConfig

SECTION = "plugins."


class PluginKind(NamedTuple):
    """Kind of plug-in.

    Attributes:
        name: key in the section `plugins`.
        parameters: names of the positional arguments that the function is called with.
        makes_object: whether the function, or class, returns the object that is used.
    """

    name: str
    parameters: tuple[str, ...]
    makes_object: bool = False


MASKING = PluginKind("masking", ("ids", "special", "rng", "context"))
METRICS = PluginKind("metrics", ("predictions", "labels"))
HOOKS = PluginKind("hooks", (), makes_object=True)
DATASET = PluginKind("dataset", ("split",))
LOSS = PluginKind("loss", ("logits", "labels"))
KINDS = (MASKING, METRICS, HOOKS, DATASET, LOSS)

EVENTS = {
    "on_step": ("step", "metrics"),
    "on_evaluation": ("step", "metrics"),
    "on_checkpoint": ("step", "folder"),
}
"""Methods of a hook, with their parameters."""
STATE = {"state_dict": (), "load_state_dict": ("state",)}


class RequestedPlugin(NamedTuple):
    """A plug-in that a run file names: kind, key (such as `plugins.metrics.0`) and value."""

    kind: PluginKind
    key: str
    text: str

    @property
    def path(self) -> tuple[str, ...]:
        """Parts of the key, such as ("plugins", "metrics", "0")."""
        return tuple(self.key.split("."))


def requested_plugins(plugins: PluginsConfig) -> Iterator[RequestedPlugin]:
    """Yield the plug-ins that a config names."""
    for kind in KINDS:
        value = getattr(plugins, kind.name)
        if isinstance(value, str):
            yield RequestedPlugin(kind, SECTION + kind.name, value)
        for index, text in enumerate(value if isinstance(value, tuple) else ()):
            yield RequestedPlugin(kind, f"{SECTION}{kind.name}.{index}", text)
