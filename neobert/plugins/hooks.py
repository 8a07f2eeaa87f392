"""Hooks of plug-ins in the training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from neobert.config.schema import RunConfig
from neobert.metric_names import EVAL
from neobert.plugins.hook_object import PluggedHook
from neobert.plugins.kinds import HOOKS
from neobert.plugins.loading import load_plugins_of_kind
from neobert.training.loop.hooks import Hook, Stage, StepReport
from neobert.training.state.trainer import Trainer


class PluggedHooks:
    """Hook plug-ins of a run, called in its first process only."""

    def __init__(self, hooks: Sequence[PluggedHook] = (), saved_step: int | None = None) -> None:
        self._hooks, self._saved_step = hooks, saved_step

    @classmethod
    def from_config(cls, config: RunConfig, saved: Mapping[str, Any], *, is_main: bool) -> PluggedHooks:
        """Build the hooks in the first process, and restore their states; other processes have no hooks.

        `saved`: a checkpoint's state.json, or empty. Raises `PluginError` if a plug-in fails.
        """
        hooks = [
            PluggedHook.from_plugin(each) for each in load_plugins_of_kind(config.plugins, HOOKS) if is_main
        ]
        states = saved.get("plugins")
        for hook in hooks:
            hook.load(states.get(hook.name) if isinstance(states, dict) else None)
        return cls(hooks, saved.get("step"))

    def state(self) -> dict[str, Any]:
        """Return the states of all hooks by file and function."""
        return {each.name: each.state() for each in self._hooks}

    def hooks(self, trainer: Trainer) -> list[Hook]:
        """Return training-loop hooks that notify these hooks after a metrics line is written."""
        every = trainer.config.trainer
        due = {"on_step": every.logging_steps, "on_evaluation": every.eval_steps}
        notified = [
            Hook(
                name=f"plugin {event}",
                act=partial(self._notify_metrics, event),
                stage=Stage.REACT,
                every=steps,
                at_start=event == "on_evaluation",
            )
            for event, steps in due.items()
        ]
        saved = Hook(name="plugin on_checkpoint", act=self._notify_checkpoint, stage=Stage.ANNOUNCE, every=1)
        return [*notified, saved] if self._hooks else []

    def notify_saved(self, trainer: Trainer) -> None:
        """Notify the hooks of the newest complete checkpoint, once. Raises `PluginError`."""
        step = trainer.progress.saved_step
        if step is None or step == self._saved_step:
            return
        self._saved_step = step
        for hook in self._hooks:
            hook.notify("on_checkpoint", step, str(trainer.checkpoints / str(step)))

    def _notify_checkpoint(self, trainer: Trainer, _report: StepReport) -> None:
        self.notify_saved(trainer)

    def _notify_metrics(self, event: str, _trainer: Trainer, report: StepReport) -> None:
        metrics = dict(report.metrics)
        if event == "on_evaluation":
            metrics = {name: value for name, value in metrics.items() if name.startswith(EVAL)}
        for hook in self._hooks if metrics else ():
            hook.notify(event, report.step, metrics)
