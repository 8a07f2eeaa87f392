"""Metrics of an evaluation as text."""

from __future__ import annotations

from neobert.metric_names import EVAL, EVAL_LOSS, own_text_metric_name
from neobert.tasks.metric import Metric, show_number
from neobert.tasks.specs import known_metrics


def metric_label(name: str) -> str:
    """Return the display name of a metric, e.g. `eval loss` or `accuracy`."""
    return "eval loss" if name == EVAL_LOSS else name.removeprefix(EVAL)


def value_text(name: str, value: float) -> str:
    """Format a value of a metric, a share in percent: 0.5123, 81.20%."""
    metric = _find_metric(name)
    return show_number(value) if metric is None else metric.show(value)


def short_value_text(name: str, value: float) -> str:
    """Format a value with few digits, a share in percent: 0.5123, 81.2%."""
    return f"{value:.1%}" if is_share(name) else f"{value:.4g}"


def is_share(name: str) -> bool:
    """Return whether a metric is a share, shown in percent; False for an unknown metric."""
    metric = _find_metric(name)
    return metric is not None and metric.is_share


def metric_text(name: str, value: float) -> str:
    """Format a metric with its name: eval loss 0.5123, accuracy 81.20%."""
    return f"{metric_label(name)} {value_text(name, value)}"


def _find_metric(name: str) -> Metric | None:
    """Return the metric of any task with this name (`eval/source_NAME` is `eval/NAME`), or None."""
    return known_metrics().get(own_text_metric_name(name))
