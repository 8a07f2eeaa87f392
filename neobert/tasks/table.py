"""Table of tasks by name, the values of the key `task`."""

from __future__ import annotations

from neobert.config.keys import sections
from neobert.config.schema import RunConfig
from neobert.tasks.classification.spec import CLASSIFICATION
from neobert.tasks.pretraining.spec import PRETRAINING
from neobert.tasks.spec import Metric, TaskSpec
from neobert.tasks.token_classification.spec import TOKEN_CLASSIFICATION

TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in (PRETRAINING, CLASSIFICATION, TOKEN_CLASSIFICATION)}


def spec_of(config: RunConfig) -> TaskSpec:
    """Return the task that a config names."""
    return TASKS[config.task]


def metrics_of(config: RunConfig) -> tuple[Metric, ...]:
    """Return the metrics that an evaluation of this run reports."""
    spec = spec_of(config)
    return tuple(metric for metric in spec.metrics if spec.reports(config, metric))


def sections_read() -> dict[str, frozenset[str]]:
    """Return the sections that each task reads, by the task's name."""
    owned = frozenset[str]().union(*(spec.own_sections for spec in TASKS.values()))
    return {name: (frozenset(sections()) - owned) | spec.own_sections for name, spec in TASKS.items()}


def known_metrics() -> dict[str, Metric]:
    """Return the metrics of all tasks by name; metrics with the same name have the same direction."""
    return {metric.name: metric for spec in TASKS.values() for metric in spec.metrics}
