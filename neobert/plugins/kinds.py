"""Kinds of plug-ins: key, parameters, and the words for messages. Imports no torch and no numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from neobert.config.schema import PluginsConfig

SECTION = "plugins."


class Kind(NamedTuple):
    """Kind of plug-in.

    Attributes:
        name: key in the section `plugins`.
        parameters: names of the positional arguments that the function is called with.
        makes_object: whether the function, or class, returns the object that is used.
    """

    name: str
    parameters: tuple[str, ...]
    makes_object: bool = False


MASKING = Kind("masking", ("ids", "special", "rng", "context"))
METRICS = Kind("metrics", ("predictions", "labels"))
HOOKS = Kind("hooks", (), makes_object=True)
DATASET = Kind("dataset", ("split",))
LOSS = Kind("loss", ("logits", "labels"))
KINDS = (MASKING, METRICS, HOOKS, DATASET, LOSS)

EVENTS = {
    "on_step": ("step", "metrics"),
    "on_evaluation": ("step", "metrics"),
    "on_checkpoint": ("step", "folder"),
}
"""Methods of a hook, with their parameters."""
STATE = {"state_dict": (), "load_state_dict": ("state",)}


class Requested(NamedTuple):
    """A plug-in that a run file names: its kind, its key (`plugins.metrics.0`), and the text of the key."""

    kind: Kind
    key: str
    text: str

    @property
    def path(self) -> tuple[str, ...]:
        """Return the key as a path."""
        return tuple(self.key.split("."))


def requested(plugins: PluginsConfig) -> Iterator[Requested]:
    """Yield the plug-ins that a config names."""
    for kind in KINDS:
        value = getattr(plugins, kind.name)
        if isinstance(value, str):
            yield Requested(kind, SECTION + kind.name, value)
        for index, text in enumerate(value if isinstance(value, tuple) else ()):
            yield Requested(kind, f"{SECTION}{kind.name}.{index}", text)
