"""The table of tasks: the key `task` names a row."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.tasks.pretraining.spec import PRETRAINING
from neobert.tasks.spec import Metric, TaskSpec

TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in (PRETRAINING,)}


def spec_of(config: RunConfig) -> TaskSpec:
    """Return the task that a config names."""
    return TASKS[config.task]


def metrics_of(config: RunConfig) -> tuple[Metric, ...]:
    """Return what an evaluation of this run reports."""
    spec = spec_of(config)
    return tuple(metric for metric in spec.metrics if spec.reports(config, metric))


def known_metrics() -> dict[str, Metric]:
    """Return the metrics of all tasks by name; a name has one direction everywhere."""
    return {metric.name: metric for spec in TASKS.values() for metric in spec.metrics}
