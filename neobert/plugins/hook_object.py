"""Object of a hook plug-in: its events and its state. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from neobert.plugins.kinds import EVENTS
from neobert.plugins.loading import Plugin


@dataclass(frozen=True, eq=False)
class PluggedHook:
    """A user-defined hook: the plug-in, and the object that it returned."""

    plugin: Plugin
    target: Any

    @classmethod
    def made_by(cls, plugin: Plugin) -> PluggedHook:
        """Build the object. Raises `PluginError` if it has no method of a hook."""
        target = plugin()
        if not any(callable(getattr(target, name, None)) for name in EVENTS):
            raise plugin.invalid(f"returned {type(target).__name__}, which has none of {', '.join(EVENTS)}")
        if hasattr(target, "state_dict") != hasattr(target, "load_state_dict"):
            raise plugin.invalid("has only one of state_dict and load_state_dict")
        return cls(plugin, target)

    @property
    def name(self) -> str:
        """File and function, without the folder: the name of its state in a checkpoint."""
        return PurePath(self.plugin.label).name

    def notify(self, event: str, *arguments: Any) -> None:
        """Call a method, if the hook has it. Raises `PluginError`."""
        method = getattr(self.target, event, None)
        if method is not None:
            self.plugin.guarded(method, *arguments)

    def state(self) -> Any:
        """Return the state as JSON values; None for a hook without. Raises `PluginError`."""
        if not hasattr(self.target, "state_dict"):
            return None
        state = self.plugin.guarded(self.target.state_dict)
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self.plugin.invalid(f"has a state that is not JSON-serializable: {error}") from None
        return json.loads(text)

    def load(self, state: Any) -> None:
        """Restore a state that `state` returned. Raises `PluginError`."""
        if hasattr(self.target, "load_state_dict") and state is not None:
            self.plugin.guarded(self.target.load_state_dict, state)
