"""Tasks: one folder each, with a `spec` that needs no torch and a `task` that builds what the loop trains."""

from neobert.tasks.spec import Head, Metric, TaskSpec
from neobert.tasks.table import TASKS, known_metrics, metrics_of, sections_read, spec_of

__all__ = ["TASKS", "Head", "Metric", "TaskSpec", "known_metrics", "metrics_of", "sections_read", "spec_of"]
