"""Metrics of plug-ins, computed from all predictions of an evaluation."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.batches.microbatch import is_target
from neobert.metric_names import EVAL, SOURCE
from neobert.objectives.labelled import Predictions
from neobert.parallel import World
from neobert.plugins.loading import Plugin
from neobert.training.loop.task import Metrics, Task

NAME = re.compile(r"[a-z][a-z0-9_]*")


def with_metrics(task: Task, plugins: Sequence[Plugin]) -> Task:
    """Return the task with the metrics of these plug-ins added to its evaluations."""
    if not plugins:
        return task
    own = task.metrics
    return replace(task, metrics=lambda: PluggedMetrics(own(), plugins))


class PluggedMetrics:
    """Metrics of the task and of plug-ins; all predictions are kept in host memory for the plug-ins."""

    def __init__(self, own: Metrics, plugins: Sequence[Plugin]) -> None:
        self._own, self._plugins = own, plugins
        self._logits: list[NDArray[np.float32]] = []
        self._labels: list[NDArray[Any]] = []

    def add(self, score: Predictions, batch: Any) -> None:
        """Add a microbatch: logits and labels of its texts or words."""
        self._own.add(score, batch)
        labels = score.labels.flatten().cpu().numpy()
        chosen = is_target(labels)
        self._logits.append(score.logits.flatten(0, -2).float().cpu().numpy()[chosen])
        self._labels.append(labels[chosen])

    def values(self, world: World) -> dict[str, float | None]:
        """Return task and plug-in metrics over all ranks; without any label, no plug-in is called."""
        values = self._own.values(world)
        logits, labels = (b"".join(each.tobytes() for each in kept) for kept in (self._logits, self._labels))
        gathered = world.gather(logits), world.gather(labels)

        def compute() -> dict[str, float | None]:
            labels = np.frombuffer(b"".join(gathered[1]), self._labels[0].dtype) if self._labels else ()
            if not len(labels):
                return {}
            logits = np.frombuffer(b"".join(gathered[0]), np.float32).reshape(len(labels), -1)
            return compute_plugin_metrics(self._plugins, logits, np.asarray(labels), values)

        return values | world.on_main(compute)


def compute_plugin_metrics(
    plugins: Sequence[Plugin], logits: NDArray[Any], labels: NDArray[Any], known: Mapping[str, Any]
) -> dict[str, float | None]:
    """Compute the metrics of all plug-ins by name. Raises `PluginError` for an invalid result.

    `known`: metrics of the task, whose names no plug-in may use.
    """
    predictions = logits[:, 0] if labels.dtype.kind == "f" else logits
    found: dict[str, float | None] = {}
    for plugin in plugins:
        result = plugin(predictions.copy(), labels.copy())
        if not isinstance(result, Mapping) or not result:
            raise plugin.invalid_result_error(
                f"returned {type(result).__name__}, not a dictionary of names and numbers"
            )
        for name, value in result.items():
            full = f"{EVAL}{name}"
            if not isinstance(name, str) or not NAME.fullmatch(name) or full.startswith(SOURCE):
                raise plugin.invalid_result_error(
                    f"returned the name {name!r}, which is not lower-case letters, digits and underscores, "
                    "or begins with source_"
                )
            if full in known or full in found:
                raise plugin.invalid_result_error(f"returned {name!r}, which the run reports already")
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise plugin.invalid_result_error(
                    f"returned {type(value).__name__} as {name!r}, not a number"
                )
            try:
                found[full] = float(value)
            except OverflowError:
                raise plugin.invalid_result_error(
                    f"returned as {name!r} an integer above {sys.float_info.max:.1e}, the largest float"
                ) from None
    return found
