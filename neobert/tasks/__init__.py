"""Tasks: one package each, with `spec` (imports no torch) and `task` (builds model, objective and data)."""

from neobert.tasks.spec import Head, Metric, TaskSpec
from neobert.tasks.table import TASKS, known_metrics, metrics_of, sections_read, spec_of

__all__ = ["TASKS", "Head", "Metric", "TaskSpec", "known_metrics", "metrics_of", "sections_read", "spec_of"]
