"""A task with the loss and the metrics of plug-ins."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import PluginsConfig
from neobert.plugins.kinds import LOSS, METRICS
from neobert.plugins.loading import load_plugins_of_kind
from neobert.plugins.loss import with_loss
from neobert.plugins.metrics import with_metrics
from neobert.training.loop.task import Task


def with_plugins(task: Task, plugins: PluginsConfig) -> Task:
    """Return the task with the loss and the metrics of these plug-ins. Raises `PluginError`."""
    for loss in load_plugins_of_kind(plugins, LOSS):
        task = replace(task, objective=with_loss(task.objective, loss))
    return with_metrics(task, load_plugins_of_kind(plugins, METRICS))
