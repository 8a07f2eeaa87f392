"""Wrapper of a hook plug-in's object: events and state. Imports no torch."""

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
    def from_plugin(cls, plugin: Plugin) -> PluggedHook:
        """Call the plug-in to build its hook object. Raises `PluginError` if it has no hook method."""
        target = plugin()
        if not any(callable(getattr(target, name, None)) for name in EVENTS):
            raise plugin.invalid_result_error(
                f"returned {type(target).__name__}, which has none of {', '.join(EVENTS)}"
            )
        if hasattr(target, "state_dict") != hasattr(target, "load_state_dict"):
            raise plugin.invalid_result_error("has only one of state_dict and load_state_dict")
        return cls(plugin, target)

    @property
    def name(self) -> str:
        """File and function without the folder, the key of its state in checkpoints."""
        return PurePath(self.plugin.label).name

    def notify(self, event: str, *arguments: Any) -> None:
        """Call the hook's method for `event`, if it has one. Raises `PluginError`."""
        method = getattr(self.target, event, None)
        if method is not None:
            self.plugin.call_guarded(method, *arguments)

    def state(self) -> Any:
        """Return the state as JSON values; None for a hook without state.

        Raises `PluginError` for an error in the hook, or if the state is not JSON-serializable.
        """
        if not hasattr(self.target, "state_dict"):
            return None
        state = self.plugin.call_guarded(self.target.state_dict)
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self.plugin.invalid_result_error(
                f"has a state that is not JSON-serializable: {error}"
            ) from None
        return json.loads(text)

    def load(self, state: Any) -> None:
        """Restore a state that `state` returned, if the hook can. Raises `PluginError` for an error in it."""
        if hasattr(self.target, "load_state_dict") and state is not None:
            self.plugin.call_guarded(self.target.load_state_dict, state)
