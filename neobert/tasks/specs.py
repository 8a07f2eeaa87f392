"""Specifications of the tasks in the table, by name."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from neobert.config.keys import sections
from neobert.config.schema import RunConfig, TrainerConfig
from neobert.tasks.metric import Metric
from neobert.tasks.spec import TaskSpec
from neobert.tasks.table import TASKS

SPECS: dict[str, TaskSpec] = {
    name: import_module(f"{task.package}.spec").SPEC for name, task in TASKS.items()
}


def spec_of(config: RunConfig) -> TaskSpec:
    """Return the task that a config names, with the changes that the config's keys make."""
    spec = SPECS[config.task]
    changed = spec.by_config(config)
    return replace(spec, **changed) if changed else spec


def text_task(*, is_causal: bool) -> TaskSpec:
    """Return the task that pretrains on text: next tokens if `is_causal`, else masked words."""
    return next(
        each for each in SPECS.values() if each.is_self_supervised and (each.predicts == "next") == is_causal
    )


def reported_metrics(config: RunConfig) -> tuple[Metric, ...]:
    """Return the metrics that an evaluation of this run reports."""
    spec = spec_of(config)
    return tuple(metric for metric in spec.metrics if spec.reports(config, metric))


def sections_read() -> dict[str, frozenset[str]]:
    """Return the sections that each task reads, by the task's name: the shared ones, and its own."""
    owned = {name for name, task in TASKS.items() if task.section}
    return {
        name: frozenset(sections()) - (owned - {name}) - spec.unread_sections for name, spec in SPECS.items()
    }


def find_metric(name: str) -> Metric:
    """Return a metric by name; an unknown one, of a plug-in, is better if higher."""
    return known_metrics().get(name, Metric(name, is_higher_better=True))


def is_higher_better(trainer: TrainerConfig, metric: str) -> bool:
    """Return whether a higher value of a metric is better.

    For `metric_for_best_model`, `greater_is_better` overrides the metric's own direction, unless it is null.
    """
    if metric == trainer.metric_for_best_model and trainer.greater_is_better is not None:
        return trainer.greater_is_better
    return find_metric(metric).is_higher_better


def known_metrics() -> dict[str, Metric]:
    """Return the metrics of all tasks by name; metrics with the same name have the same direction."""
    return {metric.name: metric for spec in SPECS.values() for metric in spec.metrics}
